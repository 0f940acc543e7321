//! Programs of the system that mount and format for us.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How long a program that was killed may take to be gone.
const LAST_BREATH: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// More than any honest answer is long.
const WORDS: u64 = 16 << 10;

/// In the words of upstream.
pub(super) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    }
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a program to its end, or to ours.
pub(super) fn run(program: &mut Command, limit: Duration) -> io::Result<Ended> {
    let name = program.get_program().to_owned();
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.process_group(0).spawn()?;
    let (out, err) = (listen(child.stdout.take()), listen(child.stderr.take()));
    if let Some(status) = wait(&mut child, limit)? {
        let (out, err) = (words(out), words(err));
        return Ok(Ended { status, out, err });
    }
    // With its children: mount(8) leaves the work to a program of the file system's.
    rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL)?;
    wait(&mut child, LAST_BREATH)?;
    Err(given_up(&name, limit))
}

/// Read aside: who fills a pipe that nobody reads never ends.
fn listen(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(WORDS).read_to_end(&mut text);
            let _ = io::copy(&mut pipe, &mut io::sink());
        }
        String::from_utf8_lossy(&text).trim().to_owned()
    })
}

/// A child of the child may hold the pipe; what it has to say is not waited for.
fn words(listener: JoinHandle<String>) -> String {
    let until = Instant::now() + LAST_BREATH;
    while !listener.is_finished() && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
    }
    if listener.is_finished() { listener.join().unwrap_or_default() } else { String::new() }
}

fn given_up(name: &OsStr, limit: Duration) -> io::Error {
    let message = format!("{} has not ended within {}s and was killed", name.display(), limit.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, message)
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> io::Result<Ended> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn a_program_ends_or_is_ended() {
        let long = Duration::from_secs(60);
        let Ended { status, out, err } = shell("echo a; echo no such server >&2; exit 32", long).unwrap();
        assert_eq!((how(status).as_str(), &*out, &*err), ("exit status 32", "a", "no such server"));
        let loud = shell("head -c 200000 /dev/zero | tr '\\0' x >&2", long).unwrap();
        assert!(loud.status.success());
        assert_eq!(loud.err.len(), usize::try_from(WORDS).unwrap());
        let begun = Instant::now();
        let error = shell("exec sleep 1000", Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < long);
    }

    #[test]
    fn its_children_end_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("child");
        let script = format!("sleep 1000 & echo $! > {}; wait", note.display());
        shell(&script, Duration::from_secs(2)).unwrap_err();
        let child = std::fs::read_to_string(note).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        let is_gone = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        let begun = Instant::now();
        while !is_gone() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{child} lives on");
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
