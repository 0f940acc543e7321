//! `cargo xtask update-kubernetes CHECKOUT`: the numbers of protobuf fields, from the sources of a Kubernetes release.
//!
//! A release says which messages there are in its `generated.proto` files, and how each field is called in JSON in the tags
//! of its Go types. `crates/schema/numbers.txt` joins both; see docs/update-kubernetes.md.

mod numbers;
mod upstream;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;
use crate::terminal::say;
use numbers::{News, Table};
use upstream::Package;

const TABLE: &str = "crates/schema/numbers.txt";

pub(crate) fn update(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let [checkout] = args else {
        return Err(Failure::new("update-kubernetes takes the path of a checkout of Kubernetes"));
    };
    let path = layout.root.join(TABLE);
    let text = fs::read_to_string(&path).doing(|| format!("reading {}", path.display()))?;
    let table = Table::parse(&text);
    let packages = read_packages(Path::new(checkout), table.packages())?;
    let (renewed, news) = table.renewed(&packages)?;
    tell(&news);
    let rendered = renewed.render();
    if rendered == text {
        say(format_args!("{TABLE} says what this release says"));
    } else {
        fs::write(&path, rendered).doing(|| format!("writing {}", path.display()))?;
        say(format_args!("{TABLE} is written anew; go on with docs/update-kubernetes.md"));
    }
    Ok(ExitCode::SUCCESS)
}

fn read_packages<'a>(
    checkout: &Path,
    names: impl Iterator<Item = &'a str>,
) -> Result<BTreeMap<String, Package>> {
    let mut packages = BTreeMap::new();
    for name in names {
        let dir = checkout.join("staging/src/k8s.io").join(directory(name));
        packages.insert(name.to_owned(), read_package(&dir)?);
    }
    Ok(packages)
}

/// Where the types of a package are, as `core.v1`.
fn directory(package: &str) -> PathBuf {
    let (group, version) = package.split_once('.').unwrap_or((package, ""));
    let above = match group {
        "meta" => "apimachinery/pkg/apis",
        "apiextensions" => "apiextensions-apiserver/pkg/apis",
        "apiregistration" => "kube-aggregator/pkg/apis",
        _ => "api",
    };
    [above, group, version].iter().collect()
}

fn read_package(dir: &Path) -> Result<Package> {
    let read = |path: &Path| fs::read_to_string(path).doing(|| format!("reading {}", path.display()));
    let proto = read(&dir.join("generated.proto"))?;
    let mut go = String::new();
    for entry in fs::read_dir(dir).doing(|| format!("listing {}", dir.display()))? {
        let path = entry.doing(|| format!("listing {}", dir.display()))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.ends_with(".go") && !name.ends_with("_test.go") && !name.starts_with("zz_generated") {
            go += &read(&path)?;
        }
    }
    Ok(Package::parse(&proto, &go))
}

fn tell(news: &News) {
    let lists = [
        ("new fields", &news.fields),
        ("fields that are gone", &news.gone),
        ("new types that known ones use", &news.types),
        ("types that are gone", &news.gone_types),
        ("types of known packages that the table leaves out", &news.left_out),
    ];
    for (title, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        say(format_args!("{title}:"));
        list.iter().for_each(|line| say(format_args!("  {line}")));
    }
}
