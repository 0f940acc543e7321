//! apt with a private state directory: it reads the machine's own mirror and keyring, and changes nothing on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fixture::{Doing, Failure, Result};

/// apt as seen through one suite.
#[derive(Debug)]
pub(crate) struct Apt {
    dir: PathBuf,
    suite: &'static str,
}

/// One entry of the machine's apt sources, kept in the notation it was written in.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    /// `deb [options] uri suite components`
    OneLine { options: String, uri: String },
    /// A deb822 stanza without its Types, Suites and Components fields.
    Stanza(String),
}

// === impl Apt ===

impl Apt {
    pub(crate) fn new(dir: &Path, suite: &'static str) -> Result<Self> {
        let source = machine_source()?;
        let dir = dir.join(suite);
        for sub in ["lists/partial", "archives/partial", "empty"] {
            fs::create_dir_all(dir.join(sub)).doing(|| format!("making {}", dir.join(sub).display()))?;
        }
        let extension = if matches!(source, Source::OneLine { .. }) { "list" } else { "sources" };
        let list = dir.join(format!("machine.{extension}"));
        let write =
            |path: &Path, text: &str| fs::write(path, text).doing(|| format!("writing {}", path.display()));
        write(&list, &source.with_suite(suite))?;
        write(&dir.join("status"), "")?;
        write(&dir.join("apt.conf"), &configuration(&dir, &list))?;
        Ok(Self { dir, suite })
    }

    /// Fetches the package lists.
    pub(crate) fn update(&self) -> Result<()> {
        self.run("apt-get", &["update", "--quiet=2", "--error-on=any"], &self.dir).map(drop)
    }

    /// The version of a package that this suite offers.
    pub(crate) fn version(&self, package: &str) -> Result<String> {
        self.field(package, "Version")
    }

    /// What the suite says of a package.
    pub(crate) fn field(&self, package: &str, name: &str) -> Result<String> {
        let out = self.run("apt-cache", &["show", "--no-all-versions", package], &self.dir)?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .map(str::to_owned)
            .ok_or_else(|| Failure::new(format!("{} has no package {package} with {name}", self.suite)))
    }

    /// Packages with everything they depend on, down to libc, each with its version.
    pub(crate) fn closure(&self, packages: &[&str]) -> Result<Vec<(String, String)>> {
        let args = [&["install", "--simulate", "--no-install-recommends"], packages].concat();
        let out = self.run("apt-get", &args, &self.dir)?;
        Ok(String::from_utf8_lossy(&out.stdout).lines().filter_map(parse_installed).collect())
    }

    /// Downloads one package and returns the file.
    pub(crate) fn download(&self, package: &str, version: &str) -> Result<PathBuf> {
        let files = self.download_all(package, &[(package.to_owned(), version.to_owned())])?;
        files
            .into_iter()
            .next()
            .ok_or_else(|| Failure::new(format!("apt downloaded no file for {package} {version}")))
    }

    /// Downloads packages at once, into a directory of that name, and returns the files.
    pub(crate) fn download_all(&self, dir: &str, packages: &[(String, String)]) -> Result<Vec<PathBuf>> {
        let into = self.dir.join("debs").join(dir);
        let _ = fs::remove_dir_all(&into);
        fs::create_dir_all(&into).doing(|| format!("making {}", into.display()))?;
        let named: Vec<String> =
            packages.iter().map(|(package, version)| format!("{package}={version}")).collect();
        let mut args = vec!["download", "--quiet=2"];
        args.extend(named.iter().map(String::as_str));
        self.run("apt-get", &args, &into)?;
        let entries = fs::read_dir(&into).doing(|| format!("listing {}", into.display()))?;
        let files: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "deb"))
            .collect();
        match files.len() == packages.len() {
            true => Ok(files),
            false => Err(Failure::new(format!("apt downloaded {} of {} files", files.len(), packages.len()))),
        }
    }

    fn run(&self, program: &str, args: &[&str], cwd: &Path) -> Result<Output> {
        let out = Command::new(program)
            .args(args)
            .current_dir(cwd)
            .env("APT_CONFIG", self.dir.join("apt.conf"))
            .env("LC_ALL", "C")
            .output()
            .doing(|| format!("running {program}"))?;
        if out.status.success() {
            return Ok(out);
        }
        let words = String::from_utf8_lossy(&out.stderr);
        Err(Failure::new(format!("{program} {} ({}): {}", args.join(" "), self.suite, words.trim())))
    }
}

/// `Inst package (version suite [architecture])`
fn parse_installed(line: &str) -> Option<(String, String)> {
    let (package, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    Some((package.to_owned(), rest.split_whitespace().next()?.to_owned()))
}

fn configuration(dir: &Path, list: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"Dir::State "{dir}";
Dir::State::Lists "{dir}/lists";
Dir::State::status "{dir}/status";
Dir::Cache "{dir}";
Dir::Cache::archives "{dir}/archives";
Dir::Etc::sourcelist "{list}";
Dir::Etc::sourceparts "{dir}/empty";
Dir::Etc::preferences "{dir}/empty/none";
Dir::Etc::preferencesparts "{dir}/empty";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-hidpi::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Retries "3";
APT::Sandbox::User "root";
"#,
        list = list.display()
    )
}

// === impl Source ===

impl Source {
    fn with_suite(&self, suite: &str) -> String {
        match self {
            Source::OneLine { options, uri } => format!("deb {options}{uri} {suite} main\n"),
            Source::Stanza(rest) => format!("Types: deb\nSuites: {suite}\nComponents: main\n{rest}"),
        }
    }
}

/// The machine's own Debian archive. The mirror and its key are the machine's choice, never ours.
fn machine_source() -> Result<Source> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        release
            .lines()
            .find_map(|l| l.strip_prefix(key))
            .map(|v| v.trim_matches('"').to_owned())
            .unwrap_or_default()
    };
    if field("ID=") != "debian" {
        return Err(Failure::new(format!(
            "this machine is {:?}, not Debian: containerd, runc and the CNI plugins are unpacked from Debian packages",
            field("ID=")
        )));
    }
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(dir) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(dir.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let suites =
        [field("VERSION_CODENAME="), "stable".into(), "testing".into(), "unstable".into(), "sid".into()];
    files.iter().find_map(|file| read_source(file, &suites)).ok_or_else(|| {
        Failure::new(
            "no Debian archive with component main in /etc/apt/sources.list or /etc/apt/sources.list.d",
        )
    })
}

fn read_source(file: &Path, suites: &[String]) -> Option<Source> {
    let text = fs::read_to_string(file).ok()?;
    match file.extension()?.to_str()? {
        "list" => text.lines().find_map(|line| parse_line(line, suites)),
        "sources" => text.split("\n\n").find_map(|stanza| parse_stanza(stanza, suites)),
        _ => None,
    }
}

fn parse_line(line: &str, suites: &[String]) -> Option<Source> {
    let rest = line.trim().strip_prefix("deb")?.strip_prefix(char::is_whitespace)?.trim_start();
    let (options, rest) = match rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
        Some((options, rest)) => (format!("[{}] ", options.trim()), rest),
        None => (String::new(), rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let wanted = suites.iter().any(|s| s == suite) && words.any(|component| component == "main");
    wanted.then(|| Source::OneLine { options, uri: uri.to_owned() })
}

fn parse_stanza(stanza: &str, suites: &[String]) -> Option<Source> {
    let (mut rest, mut kept) = (String::new(), true);
    let (mut deb, mut suite, mut main, mut enabled) = (false, false, false, true);
    for line in stanza.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        if line.starts_with([' ', '\t']) {
            if kept {
                rest += &format!("{line}\n");
            }
            continue;
        }
        let (key, value) = line.split_once(':')?;
        let has = |word: &str| value.split_whitespace().any(|v| v == word);
        kept = false;
        match key.to_ascii_lowercase().as_str() {
            "types" => deb = has("deb"),
            "suites" => suite = suites.iter().any(|s| has(s)),
            "components" => main = has("main"),
            "enabled" => enabled = !has("no"),
            _ => {
                kept = true;
                rest += &format!("{line}\n");
            }
        }
    }
    (deb && suite && main && enabled).then_some(Source::Stanza(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites() -> Vec<String> {
        vec!["bookworm".into(), "stable".into()]
    }

    #[test]
    fn packages_of_a_simulated_installation_are_read() {
        let line = "Inst libfdt1 (1.6.1-4+b1 Debian:12.12/stable [amd64]) []";
        assert_eq!(parse_installed(line), Some(("libfdt1".into(), "1.6.1-4+b1".into())));
        assert_eq!(parse_installed("Conf libfdt1 (1.6.1-4+b1 Debian:12.12/stable [amd64])"), None);
    }

    #[test]
    fn one_line_entries_keep_their_mirror_and_options() {
        let rows = [
            ("deb http://mirror.test/debian bookworm main", Some("deb http://mirror.test/debian sid main\n")),
            (
                "deb [signed-by=/k.gpg arch=amd64]  http://mirror.test/debian stable contrib main",
                Some("deb [signed-by=/k.gpg arch=amd64] http://mirror.test/debian sid main\n"),
            ),
            ("# deb http://mirror.test/debian bookworm main", None),
            ("deb-src http://mirror.test/debian bookworm main", None),
            ("deb http://mirror.test/security bookworm-security main", None),
            ("deb http://mirror.test/tool stable tool", None),
        ];
        for (line, want) in rows {
            let got = parse_line(line, &suites()).map(|source| source.with_suite("sid"));
            assert_eq!(got.as_deref(), want, "{line}");
        }
    }

    #[test]
    fn stanzas_keep_their_key() {
        let stanza = "Types: deb deb-src\n# why\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\n\
                      Components: main\nSigned-By:\n -----BEGIN\n .\n -----END";
        let got = parse_stanza(stanza, &suites()).map(|source| source.with_suite("sid"));
        let want = "Types: deb\nSuites: sid\nComponents: main\nURIs: http://mirror.test/debian\nSigned-By:\n -----BEGIN\n .\n -----END\n";
        assert_eq!(got.as_deref(), Some(want));
        assert_eq!(
            parse_stanza("Types: deb\nEnabled: no\nSuites: bookworm\nComponents: main", &suites()),
            None
        );
        assert_eq!(parse_stanza("Types: deb\nSuites: bookworm-security\nComponents: main", &suites()), None);
    }
}
