//! What the streaming server needs of the rest: the ends of a process's input and output.

use std::fmt;
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;
use tonic::Status;

/// Whoever can reach the processes of Pods.
#[tonic::async_trait]
pub(crate) trait Processes: Send + Sync + 'static {
    /// Runs a command in a container.
    async fn exec(&self, container: &str, command: &[String], wanted: Wanted) -> Result<Session, Status>;

    /// Joins in on what a container's first process says and hears.
    async fn attach(&self, container: &str, wanted: Wanted) -> Result<Session, Status>;

    /// A connection to a port of a Pod, made inside of its network.
    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<OwnedFd, Status>;
}

/// Which streams a client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) terminal: bool,
}

/// The streams of one process. No descriptor blocks.
pub(crate) struct Session {
    /// To write into. Closed, it ends the process's input.
    pub(crate) stdin: Option<OwnedFd>,
    /// To read from; of a terminal, its end is told by EIO.
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// To change the size of.
    pub(crate) terminal: Option<OwnedFd>,
    /// The exit code of a command. None for a container that somebody joins in on: its end is that of its output.
    pub(crate) exit: Option<oneshot::Receiver<i32>>,
    /// Others may use the input later, so it is not closed: the session is over when the client has no more of it.
    pub(crate) ends_with_input: bool,
    /// Dropped before the exit is told, it ends a command with all that it started. Later it only lets go: what a command
    /// left running stays.
    pub(crate) guard: Box<dyn Send + Sync>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("terminal", &self.terminal).finish_non_exhaustive()
    }
}
