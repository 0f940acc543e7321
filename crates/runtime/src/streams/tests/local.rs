//! Processes and ports of this machine instead of a container's.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::io::ioctl_fionbio;
use tokio::sync::{Notify, oneshot};
use tonic::Status;

use crate::streams::{Processes, Session, Wanted};

/// Input, output and errors.
pub(super) const ALL: [bool; 3] = [true; 3];

#[derive(Default)]
pub(super) struct Local {
    pub(super) started: Arc<Notify>,
    pub(super) ended: Arc<Notify>,
    /// What the container runs, and whether an attachment ends with its input.
    container: Mutex<(String, bool)>,
    terminal: Mutex<Option<OwnedFd>>,
}

/// Ends a process and whatever it started.
struct Guard {
    child: Child,
    ended: Arc<Notify>,
}

// === impl Local ===

impl Local {
    pub(super) fn attach_to(&self, script: &str, ends_with_input: bool) {
        *self.container.lock().unwrap() = (script.to_owned(), ends_with_input);
    }

    /// The terminal of the next command.
    pub(super) fn lend(&self, terminal: OwnedFd) {
        *self.terminal.lock().unwrap() = Some(terminal);
    }

    fn run(&self, command: &[String], ends_with_input: bool) -> Result<(Session, u32), Status> {
        use std::os::unix::process::CommandExt;
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| Status::internal(error.to_string()))?;
        let [stdin, stdout, stderr]: [Option<OwnedFd>; 3] = [
            child.stdin.take().map(Into::into),
            child.stdout.take().map(Into::into),
            child.stderr.take().map(Into::into),
        ];
        for fd in [&stdin, &stdout, &stderr].into_iter().flatten() {
            ioctl_fionbio(fd.as_fd(), true).unwrap();
        }
        let id = child.id();
        let guard = Box::new(Guard { child, ended: self.ended.clone() });
        let terminal = self.terminal.lock().unwrap().take();
        self.started.notify_one();
        Ok((Session { stdin, stdout, stderr, terminal, exit: None, ends_with_input, guard }, id))
    }
}

#[tonic::async_trait]
impl Processes for Local {
    async fn exec(&self, _: &str, command: &[String], _: Wanted) -> Result<Session, Status> {
        let (mut session, id) = self.run(command, false)?;
        let (sender, exit) = oneshot::channel();
        std::thread::spawn(move || {
            let id = rustix::process::Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
            let how = rustix::process::waitid(
                rustix::process::WaitId::Pid(id),
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
            );
            // Who is killed by the guard has nobody who asks.
            let _ = sender.send(how.unwrap().and_then(|how| how.exit_status()).unwrap_or(137));
        });
        session.exit = Some(exit);
        Ok(session)
    }

    async fn attach(&self, _: &str, _: Wanted) -> Result<Session, Status> {
        let (script, ends_with_input) = self.container.lock().unwrap().clone();
        let command = ["sh".to_owned(), "-c".to_owned(), script];
        self.run(&command, ends_with_input).map(|(session, _)| session)
    }

    async fn port_forward(&self, _: &str, port: u16) -> Result<OwnedFd, Status> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        let stream = stream.and_then(tokio::net::TcpStream::into_std);
        stream.map(Into::into).map_err(|error| Status::unavailable(error.to_string()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
        self.ended.notify_one();
    }
}
