//! The conversation with the keeper of one Pod.
//!
//! A keeper outlives the daemon. It listens under a name in the Pod's directory; whoever connects asks it what it has
//! ([`Keeper::list`]) and hears from then on what happens. An exit is told again until it is acknowledged.

mod program;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use runtime_core::message::{self, Ask, Exit, State, Tell, Told};
use runtime_core::recipe::{self, BadRecipe, Launch};
use runtime_core::wire::ADOPT_FDS;
use sys::sealed;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use program::Program;

/// Events that may wait to be taken. Behind them the keeper waits, and then asks to be listed again.
const EVENTS: usize = 256;
/// The longest message.
const MESSAGE: usize = 1024;

/// A connection to one keeper. When the last clone is dropped it is closed; the keeper goes on.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Arc<AsyncFd<OwnedFd>>,
    answers: Arc<Answers>,
    next: AtomicU32,
    _end: DropGuard,
}

/// What happened to a job without having been asked for.
#[derive(Debug)]
pub struct Event {
    pub job: u32,
    pub what: Happened,
}

#[derive(Debug)]
pub enum Happened {
    /// It waits to be released, with what it has to give.
    Held(Option<OwnedFd>),
    /// The master of its terminal.
    Terminal(OwnedFd),
    Started,
    /// It never became the program: the number of the op that was refused, and why.
    Failed {
        op: u32,
        why: io::Error,
    },
    Exited(Exit),
}

/// What a keeper has.
#[derive(Debug)]
pub struct Job {
    pub key: u32,
    pub pid: i32,
    pub state: State,
    pub pidfd: Option<OwnedFd>,
}

/// A process that was made and is being set up.
#[derive(Debug)]
pub struct Launched {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("the keeper is gone")]
    Gone,
    #[error("asking the keeper to {0}: {1}")]
    Refused(&'static str, io::Error),
    #[error("sending to the keeper: {0}")]
    Send(io::Error),
    #[error("the recipe: {0}")]
    Recipe(#[from] BadRecipe),
    #[error("starting a keeper: {0}")]
    Start(io::Error),
    #[error("the keeper's answer has no descriptor")]
    Answer,
}

#[derive(Debug, Default)]
struct Answers {
    /// None once the keeper is gone.
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    is_over: bool,
    requests: HashMap<u32, Request>,
}

#[derive(Debug)]
struct Request {
    /// Parts of an answer that is a list.
    jobs: Vec<Job>,
    exits: Vec<(u32, Exit)>,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
struct Answer {
    told: Tell,
    fd: Option<OwnedFd>,
    jobs: Vec<Job>,
    exits: Vec<(u32, Exit)>,
}

// === impl Keeper ===

impl Keeper {
    /// Starts one that will listen as `name` in `dir`.
    pub fn start(
        program: &Program,
        dir: impl AsFd,
        name: &OsStr,
    ) -> Result<(Self, mpsc::Receiver<Event>), KeeperError> {
        let socket = program.start(dir, name).map_err(KeeperError::Start)?;
        Self::over(socket).map_err(KeeperError::Start)
    }

    /// Connects to one that an earlier daemon started.
    pub fn connect(dir: impl AsFd, name: &OsStr) -> io::Result<(Self, mpsc::Receiver<Event>)> {
        Self::over(sys::message::connect(dir, name)?)
    }

    fn over(socket: OwnedFd) -> io::Result<(Self, mpsc::Receiver<Event>)> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // Its replacement is unsafe code. What it warns of is a type whose descriptor changes; an OwnedFd's does not.
        #[allow(deprecated)]
        let socket = Arc::new(AsyncFd::new(socket)?);
        let (sender, events) = mpsc::channel(EVENTS);
        let (answers, end) = (Arc::new(Answers::default()), CancellationToken::new());
        let (reader, theirs, token) = (socket.clone(), answers.clone(), end.clone());
        supervise::spawn("keeper_reader", async move {
            tokio::select! {
                () = token.cancelled() => {}
                error = read(&reader, &theirs, &sender) => tracing::debug!(%error, "a keeper is gone"),
            }
            theirs.end();
        });
        let inner = Inner { socket, answers, next: AtomicU32::new(1), _end: end.drop_guard() };
        Ok((Self(Arc::new(inner)), events))
    }

    /// Makes a process. What becomes of it is told by events.
    pub async fn launch(
        &self,
        job: u32,
        launch: &Launch,
        slots: &[BorrowedFd<'_>],
    ) -> Result<Launched, KeeperError> {
        let bytes = recipe::encode(launch)?;
        let recipe = sealed::file("recipe", &bytes, sealed::Use::Data).map_err(KeeperError::Send)?;
        let mut fds = vec![recipe.as_fd()];
        fds.extend_from_slice(slots);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let answer = self.ask("launch a process", Ask::Launch { len }, job, &fds).await?;
        match (answer.told, answer.fd) {
            (Tell::Launched { pid }, Some(pidfd)) => Ok(Launched { pid, pidfd }),
            _ => Err(KeeperError::Answer),
        }
    }

    /// Lets a process go on that is held.
    pub async fn release(&self, job: u32) -> Result<(), KeeperError> {
        self.ask("release a process", Ask::Release, job, &[]).await.map(drop)
    }

    /// The exit is written down; the keeper may forget it.
    pub async fn acknowledge(&self, job: u32) -> Result<(), KeeperError> {
        self.ask("forget a process", Ask::Ack, job, &[]).await.map(drop)
    }

    pub async fn signal(&self, job: u32, signal: u32) -> Result<(), KeeperError> {
        self.ask("signal a process", Ask::Signal(signal), job, &[]).await.map(drop)
    }

    /// From now on the log is written there.
    pub async fn set_log(&self, job: u32, log: BorrowedFd<'_>) -> Result<(), KeeperError> {
        self.ask("change a log", Ask::Log, job, &[log]).await.map(drop)
    }

    /// What is printed goes into these sockets as well: output, and errors if there is a second. Who reads too slowly loses.
    pub async fn tee(&self, job: u32, sockets: &[BorrowedFd<'_>]) -> Result<(), KeeperError> {
        self.ask("attach to a process", Ask::Tee, job, sockets).await.map(drop)
    }

    /// Where its input is written to: a pipe, or its terminal.
    pub async fn input(&self, job: u32) -> Result<OwnedFd, KeeperError> {
        self.ask("give its input", Ask::Input, job, &[]).await?.fd.ok_or(KeeperError::Answer)
    }

    /// What it prints (0) or complains (1), to be read by another keeper if this one is killed.
    pub async fn stream(&self, job: u32, which: u32) -> Result<OwnedFd, KeeperError> {
        let answer = self.ask("give its output", Ask::Stream(which), job, &[]).await?;
        answer.fd.ok_or(KeeperError::Answer)
    }

    /// Looks after a process that another keeper made: pidfd, output, errors, input, log, memory events.
    pub async fn adopt(
        &self,
        job: u32,
        pid: u32,
        fds: [Option<BorrowedFd<'_>>; ADOPT_FDS],
    ) -> Result<(), KeeperError> {
        let places = fds.iter().enumerate().filter(|(_, fd)| fd.is_some());
        let sent = places.fold(0, |sum, (at, _)| sum | 1 << at);
        let all: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().collect();
        self.ask("adopt a process", Ask::Adopt { sent, pid }, job, &all).await.map(drop)
    }

    /// The keeper's own end of the input is closed.
    pub async fn close_input(&self, job: u32) -> Result<(), KeeperError> {
        self.ask("close an input", Ask::CloseInput, job, &[]).await.map(drop)
    }

    /// Everything it has, and the exits that nobody has acknowledged.
    pub async fn list(&self) -> Result<(Vec<Job>, Vec<(u32, Exit)>), KeeperError> {
        let answer = self.ask("list its processes", Ask::List, 0, &[]).await?;
        Ok((answer.jobs, answer.exits))
    }

    /// It ends. What it launched is not touched.
    pub async fn quit(&self) -> Result<(), KeeperError> {
        self.send(&message::encode(Ask::Quit, 0, 0), &[]).await
    }

    async fn ask(
        &self,
        what: &'static str,
        ask: Ask,
        job: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, KeeperError> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed).max(1);
        let answer = self.0.answers.expect(number).ok_or(KeeperError::Gone)?;
        let forget = Forget(&self.0.answers, number);
        self.send(&message::encode(ask, number, job), fds).await?;
        let answer = answer.await.map_err(|_| KeeperError::Gone)?;
        drop(forget);
        match answer.told {
            Tell::Refused(errno) => Err(KeeperError::Refused(what, io::Error::from_raw_os_error(errno))),
            _ => Ok(answer),
        }
    }

    async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), KeeperError> {
        loop {
            let mut guard = self.0.socket.writable().await.map_err(KeeperError::Send)?;
            match guard.try_io(|socket| sys::message::send(socket.get_ref(), bytes, fds)) {
                Ok(result) => return result.map_err(KeeperError::Send),
                Err(_would_block) => {}
            }
        }
    }
}

/// A request whose caller has gone away is forgotten.
struct Forget<'a>(&'a Answers, u32);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting().requests.remove(&self.1);
    }
}

async fn read(socket: &AsyncFd<OwnedFd>, answers: &Answers, events: &mpsc::Sender<Event>) -> io::Error {
    let mut buffer = [0; MESSAGE];
    loop {
        let received = async {
            let mut guard = socket.readable().await?;
            Ok(guard.try_io(|socket| sys::message::receive(socket.get_ref(), &mut buffer)))
        };
        let (n, mut fds) = match received.await {
            Ok(Err(_would_block)) => continue,
            Ok(Ok(Ok((0, _)))) => return io::ErrorKind::UnexpectedEof.into(),
            Ok(Ok(Ok(both))) => both,
            Ok(Ok(Err(error))) | Err(error) => return error,
        };
        // What a newer keeper says and we do not understand is not for us.
        let Some(told) = message::decode(&buffer[..n]) else { continue };
        let fd = fds.pop();
        if told.request != 0 {
            answers.hear(told, fd);
        } else if let Some(event) = event(told, fd)
            && events.send(event).await.is_err()
        {
            return io::Error::other("nobody listens any more");
        }
    }
}

fn event(told: Told, fd: Option<OwnedFd>) -> Option<Event> {
    let what = match (told.what, fd) {
        (Tell::Held(_), fd) => Happened::Held(fd),
        (Tell::Terminal, Some(master)) => Happened::Terminal(master),
        (Tell::Started, _) => Happened::Started,
        (Tell::Failed { op, errno }, _) => Happened::Failed { op, why: io::Error::from_raw_os_error(errno) },
        (Tell::Exited(exit), _) => Happened::Exited(exit),
        _ => return None,
    };
    Some(Event { job: told.job, what })
}

// === impl Answers ===

impl Answers {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, number: u32) -> Option<oneshot::Receiver<Answer>> {
        let (answer, receiver) = oneshot::channel();
        let mut waiting = self.waiting();
        if waiting.is_over {
            return None;
        }
        waiting.requests.insert(number, Request { jobs: vec![], exits: vec![], answer });
        Some(receiver)
    }

    fn hear(&self, told: Told, fd: Option<OwnedFd>) {
        let mut waiting = self.waiting();
        let Some(request) = waiting.requests.get_mut(&told.request) else { return };
        match told.what {
            Tell::Job { pid, state } => {
                return request.jobs.push(Job { key: told.job, pid, state, pidfd: fd });
            }
            Tell::Exited(exit) => return request.exits.push((told.job, exit)),
            _ => {}
        }
        if let Some(Request { jobs, exits, answer }) = waiting.requests.remove(&told.request) {
            let _ = answer.send(Answer { told: told.what, fd, jobs, exits });
        }
    }

    fn end(&self) {
        let mut waiting = self.waiting();
        waiting.is_over = true;
        waiting.requests.clear();
    }
}
