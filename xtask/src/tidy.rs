//! `cargo xtask tidy`: the house rules that a compiler does not know. Also runs as a test.

mod arrows;
mod blocking;
mod layers;
mod licences;
mod papers;
mod text;
mod tokens;

use std::process::{Command, ExitCode};

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;
use crate::terminal::{complain, say};

pub(crate) fn tidy(layout: &Layout) -> Result<ExitCode> {
    let problems = problems(layout)?;
    for problem in &problems {
        complain(problem);
    }
    if problems.is_empty() {
        say("tidy");
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(format!("{} things are out of order", problems.len())))
}

fn problems(layout: &Layout) -> Result<Vec<String>> {
    let metadata = metadata(layout)?;
    let mut problems = arrows::check(&metadata);
    let deny = layout.root.join("deny.toml");
    let deny = std::fs::read_to_string(&deny).doing(|| format!("reading {}", deny.display()))?;
    problems.extend(licences::check(&metadata, &deny));
    let files = tracked_files(layout)?;
    problems.extend(text::check(layout, &files));
    problems.extend(blocking::check(layout, &files));
    problems.extend(papers::check(layout, &files));
    problems.extend(layers::check(layout, &files));
    Ok(problems)
}

fn metadata(layout: &Layout) -> Result<serde_json::Value> {
    let out = run(Command::new("cargo")
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
            &crate::images::host_triple()?,
        ])
        .current_dir(&layout.root))?;
    serde_json::from_str(&out).doing(|| "reading cargo metadata".into())
}

/// Files that are committed or about to be. Outside a git checkout there is nothing to compare with, so all of them.
fn tracked_files(layout: &Layout) -> Result<Vec<String>> {
    let git = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&layout.root));
    let listing = match git {
        Ok(listing) => listing,
        Err(_) => run(Command::new("find")
            .args([
                ".",
                "-type",
                "f",
                "-not",
                "-path",
                "./target/*",
                "-not",
                "-path",
                "./.git/*",
                "-printf",
                "%P\n",
            ])
            .current_dir(&layout.root))?,
    };
    Ok(listing.lines().map(str::to_owned).filter(|f| layout.root.join(f).is_file()).collect())
}

fn run(command: &mut Command) -> Result<String> {
    let out = command.output().doing(|| format!("running {command:?}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(Failure::new(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_in_order() -> Result<()> {
        let problems = problems(&Layout::find()?)?;
        assert!(problems.is_empty(), "\n{}", problems.join("\n"));
        Ok(())
    }
}
