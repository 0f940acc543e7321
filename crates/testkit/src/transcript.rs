//! Transcripts: shell commands with the output they must have, played against a real server.
//!
//! ```text
//! $ kubectl get cm one          must succeed
//! ! kubectl get cm two          must fail
//! $~ kubectl get sa             is retried until it fits
//! > a line of a here document
//! ```
//!
//! The lines below a command are its output, standard output and error together. Runs of spaces count as one, `…` stands
//! for any text within a line, a line `...` for any number of lines. No lines: no output.
//!
//! A line `#differs WHY` above a command says that our server does not answer so yet. Such a step is played all the same, and
//! complained about once it fits: the list of differences stays true.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long `$~` is retried.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where the command stands in its file.
    pub line: usize,
    pub command: String,
    pub expect: Expect,
    pub output: Vec<String>,
    /// Why our server answers otherwise.
    pub differs: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Success,
    Failure,
    SuccessInTime,
}

/// Reads a transcript.
#[must_use]
pub fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut differs = None;
    for (index, line) in text.lines().enumerate() {
        if let Some(why) = line.strip_prefix("#differs ") {
            differs = Some(why.to_owned());
            continue;
        }
        let mut start = |command: &str, expect| Step {
            line: index + 1,
            command: command.to_owned(),
            expect,
            output: Vec::new(),
            differs: differs.take(),
        };
        if let Some(command) = line.strip_prefix("$~ ") {
            steps.push(start(command, Expect::SuccessInTime));
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(start(command, Expect::Success));
        } else if let Some(command) = line.strip_prefix("! ") {
            steps.push(start(command, Expect::Failure));
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ") {
                Some(more) if step.output.is_empty() => {
                    step.command.push('\n');
                    step.command.push_str(more);
                }
                _ => step.output.push(squeeze(line)),
            }
        }
    }
    for step in &mut steps {
        // Empty lines between commands belong to no output.
        while step.output.last().is_some_and(String::is_empty) {
            step.output.pop();
        }
    }
    steps
}

/// Plays the steps in `dir`. The report tells every step that did not fit though it should, or did though it should not; it
/// is empty when all is as written. `ours` is false against another server, to which no difference applies.
#[must_use]
pub fn play(name: &str, steps: &[Step], dir: &Path, environment: &[(&str, String)], ours: bool) -> String {
    let mut report = String::new();
    for step in steps {
        let differs = step.differs.is_some() && ours;
        let timeout = if step.expect == Expect::SuccessInTime && !differs { TIMEOUT } else { Duration::ZERO };
        let complaint = attempt(step, dir, environment, Instant::now() + timeout);
        match complaint {
            Some((complaint, output)) if !differs => tell(&mut report, name, step, &complaint, &output),
            None if differs => tell(&mut report, name, step, "it differs no longer", &[]),
            _ => {}
        }
    }
    report
}

/// What is wrong with a step, with its output, once its time is over.
fn attempt(
    step: &Step,
    dir: &Path,
    environment: &[(&str, String)],
    deadline: Instant,
) -> Option<(String, Vec<String>)> {
    loop {
        let (succeeded, output) = run(&step.command, dir, environment);
        let wanted = step.expect != Expect::Failure;
        let complaint = if succeeded != wanted {
            format!("it {}", if succeeded { "succeeded" } else { "failed" })
        } else if !fits(&step.output, &output) {
            "its output is another".to_owned()
        } else {
            return None;
        };
        if Instant::now() >= deadline {
            return Some((complaint, output));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn tell(report: &mut String, name: &str, step: &Step, complaint: &str, output: &[String]) {
    let command = step.command.replace('\n', "\n    > ");
    let _ = writeln!(report, "{name}:{}: {complaint}: {command}", step.line);
    for line in &step.output {
        let _ = writeln!(report, "    - {line}");
    }
    for line in output.iter().take(60) {
        let _ = writeln!(report, "    + {line}");
    }
}

fn run(command: &str, dir: &Path, environment: &[(&str, String)]) -> (bool, Vec<String>) {
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("exec 2>&1\n{command}"))
        .current_dir(dir)
        .envs(environment.iter().map(|(k, v)| (k, v)))
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let mut lines: Vec<String> = text.lines().map(squeeze).collect();
            while lines.last().is_some_and(String::is_empty) {
                lines.pop();
            }
            (output.status.success(), lines)
        }
        Err(e) => (false, vec![format!("sh: {e}")]),
    }
}

/// Columns are padded to the widest cell: runs of blanks count as one, blanks at the ends as none.
fn squeeze(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fits(expected: &[String], output: &[String]) -> bool {
    match expected.split_first() {
        None => output.is_empty(),
        Some((dots, rest)) if dots == "..." => (0..=output.len()).any(|skip| fits(rest, &output[skip..])),
        Some((line, rest)) => {
            output.split_first().is_some_and(|(first, others)| fits_line(line, first) && fits(rest, others))
        }
    }
}

/// `…` takes any text, as little as will do.
fn fits_line(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default().trim_end();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.map(str::trim).collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_is_read() {
        let steps = parse("# why\n\n$ echo <<E\n> a  b\n> E\na …\n\n! false\n$~ true\n...\n");
        let seen: Vec<_> =
            steps.iter().map(|s| (s.line, s.command.as_str(), s.expect, s.output.len())).collect();
        assert_eq!(
            seen,
            [
                (3, "echo <<E\na  b\nE", Expect::Success, 1),
                (8, "false", Expect::Failure, 0),
                (9, "true", Expect::SuccessInTime, 1)
            ]
        );
    }

    #[test]
    fn outputs_fit_or_not() {
        let lines = |text: &str| text.lines().map(squeeze).collect::<Vec<_>>();
        for (expected, output, verdict) in [
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("a   b", "a b", true),
            ("a … c", "a 12 c", true),
            ("a … c", "a 12 d", false),
            ("a… b… c", "ax bx c", true),
            ("a…", "abc", true),
            ("…", "", false),
            ("...", "", true),
            ("a\n...\nz", "a\nb\nc\nz", true),
            ("a\n...\nz", "a\nb\nc", false),
            ("a\nb", "a\nb\nc", false),
        ] {
            assert_eq!(fits(&lines(expected), &lines(output)), verdict, "{expected:?} against {output:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let steps = parse(
            "$ echo hello\nhello\n\n$ echo hello\nbye\n\n! true\n#differs why\n$ false\n#differs why\n$ true\n",
        );
        let report = play("t", &steps, Path::new("/"), &[], true);
        assert_eq!(
            report,
            "t:4: its output is another: echo hello\n    - bye\n    + hello\nt:7: it succeeded: true\nt:11: it differs no longer: true\n"
        );
    }
}
