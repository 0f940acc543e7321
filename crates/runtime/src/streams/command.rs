//! A command's streams, from its client to its process and back.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use streaming::{Activity, StreamOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::IDLE;
use super::client::{self, Incoming, Outgoing, Output, Said};
use super::outcome::Outcome;
use super::pipes::Pipe;
use super::processes::{Processes, Session, Wanted};
use super::speech::Speech;
use super::tokens::Promise;

/// For the client to open its streams, as upstream.
const CREATION: Duration = Duration::from_secs(30);
/// What is read of an output at once; a pipe holds no more.
const PIECE: usize = 64 << 10;
/// Pieces of output, and of input, that may wait for each other's end.
const WAITING: usize = 8;
/// What a process that has ended may have left behind in its output is there at once; a child of it that keeps the
/// output open is not waited for.
const DRAIN: Duration = Duration::from_millis(500);

/// Until the command has ended and its client knows, or either is gone.
pub(super) async fn run(
    client: impl AsyncRead + AsyncWrite,
    speech: Speech,
    promise: Promise,
    processes: &dyn Processes,
) {
    let (mut from, mut to) = tokio::io::split(client);
    let wants = promise.wants();
    let opened = tokio::time::timeout(CREATION, client::open(speech, wants, &mut from, &mut to)).await;
    let (incoming, outgoing) = match opened {
        Ok(Ok(both)) => both,
        Ok(Err(why)) => return tracing::debug!(%why, "a stream was not opened"),
        Err(_) => return tracing::debug!("a client did not open its streams in time"),
    };
    let mut out = BytesMut::new();
    let outcome = match start(promise, processes).await {
        Ok(session) => converse((&mut from, &mut to), incoming, &outgoing, session, wants.stdin).await,
        Err(status) => {
            outgoing.ended(&mut out, Output::Stdout);
            outgoing.ended(&mut out, Output::Stderr);
            Some(Outcome::Failure(status.message().to_owned()))
        }
    };
    // A client that went away has nothing to hear.
    let Some(outcome) = outcome else { return };
    outgoing.outcome(&mut out, &outcome);
    let farewell = async {
        send(&mut to, &mut out).await?;
        to.shutdown().await
    };
    if let Ok(Ok(())) = tokio::time::timeout(CREATION, farewell).await {
        streaming::linger(&mut from).await;
    }
}

async fn start(promise: Promise, processes: &dyn Processes) -> Result<Session, Status> {
    let StreamOptions { stdin, stdout, stderr, tty } = promise.wants();
    let wanted = Wanted { stdin, stdout, stderr, terminal: tty };
    match promise {
        Promise::Exec(request) => processes.exec(&request.container_id, &request.cmd, wanted).await,
        Promise::Attach(request) => processes.attach(&request.container_id, wanted).await,
        Promise::Ports { .. } => Err(Status::invalid_argument("ports are no command")),
    }
}

/// How it ended; none if the client is gone.
async fn converse<R, W>(
    (from, to): (&mut R, &mut W),
    incoming: Incoming,
    outgoing: &Outgoing,
    session: Session,
    has_input: bool,
) -> Option<Outcome>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Session { stdin, stdout, stderr, terminal, exit, ends_with_input, guard } = session;
    let (activity, over) = (Activity::new(), CancellationToken::new());
    let (answer, answers) = mpsc::channel(WAITING);
    let (input, inputs) = mpsc::channel(WAITING);
    let ends_with_input = ends_with_input && has_input;
    let from_client =
        FromClient { incoming, input: has_input.then_some(input), terminal, answer, activity: &activity };
    let mouth =
        Mouth { outgoing, exit, over: &over, answers, activity: &activity, outputs: [stdout, stderr] };
    let feed = async {
        feed(inputs, stdin).await;
        if ends_with_input {
            over.cancel();
        }
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        outcome = mouth.tell(to) => outcome.map_err(|error| tracing::trace!(%error, "a client takes nothing more")).ok(),
        () = from_client.hear(from) => None,
        () = feed => None,
        () = activity.cease(IDLE) => Some(Outcome::Failure("nothing has moved for too long".into())),
    };
    drop(guard);
    outcome
}

/// What listens to the client.
struct FromClient<'a> {
    incoming: Incoming,
    input: Option<mpsc::Sender<Bytes>>,
    terminal: Option<OwnedFd>,
    answer: mpsc::Sender<BytesMut>,
    activity: &'a Activity,
}

/// What speaks to it.
struct Mouth<'a> {
    outgoing: &'a Outgoing,
    outputs: [Option<OwnedFd>; 2],
    exit: Option<oneshot::Receiver<i32>>,
    /// The client has no more input, and that is the end.
    over: &'a CancellationToken,
    answers: mpsc::Receiver<BytesMut>,
    activity: &'a Activity,
}

// === impl FromClient ===

impl FromClient<'_> {
    /// Ends when the client is gone.
    async fn hear(mut self, from: &mut (impl AsyncRead + Unpin)) {
        loop {
            loop {
                match self.incoming.next_said() {
                    Ok(Some(Said::Ends)) => return,
                    Ok(Some(said)) => self.act(said).await,
                    Ok(None) => break,
                    Err(why) => return tracing::debug!(%why, "a client broke the protocol"),
                }
            }
            match from.read_buf(self.incoming.buffer()).await {
                Ok(1..) => {}
                _ => return,
            }
        }
    }

    async fn act(&mut self, said: Said) {
        self.activity.mark();
        match said {
            Said::Input(bytes) => {
                if let Some(input) = &self.input
                    && input.send(bytes).await.is_err()
                {
                    self.input = None;
                }
            }
            Said::InputEnds => self.input = None,
            Said::Size { columns, rows } => {
                if let Some(terminal) = &self.terminal
                    && let Err(error) = sys::terminal::set_size(terminal, rows, columns)
                {
                    tracing::debug!(%error, "a terminal keeps its size");
                }
            }
            // One that asks too often is answered less often.
            Said::Answer(bytes) => drop(self.answer.try_send(bytes)),
            Said::Ends => {}
        }
    }
}

/// Into the process, as long as it takes something.
async fn feed(mut inputs: mpsc::Receiver<Bytes>, stdin: Option<OwnedFd>) {
    let mut stdin = stdin.and_then(|fd| Pipe::new(fd).ok());
    while let Some(bytes) = inputs.recv().await {
        if let Some(to) = &stdin
            && to.write_all(&bytes).await.is_err()
        {
            // It reads no more: what the client says goes nowhere.
            stdin = None;
        }
    }
}

// === impl Mouth ===

impl Mouth<'_> {
    /// Ends when all output was told and it is known how the process ended.
    async fn tell(mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<Outcome> {
        let [stdout, stderr] = self.outputs;
        // An attachment ends with its output, if it has any.
        let ends_with_output = self.exit.is_none() && (stdout.is_some() || stderr.is_some());
        let (sender, mut pieces) = mpsc::channel(WAITING);
        let (ending, mut out) = (CancellationToken::new(), BytesMut::new());
        let both = [(stdout, Output::Stdout), (stderr, Output::Stderr)]
            .map(|(fd, which)| read(fd, which, sender.clone(), ending.clone()));
        drop(sender);
        let read = async {
            let [first, second] = both;
            tokio::join!(first, second)
        };
        let end = end(self.exit, self.over);
        tokio::pin!(read, end);
        let (mut is_read, mut is_told, mut outcome) = (false, false, None);
        loop {
            tokio::select! {
                _ = &mut read, if !is_read => is_read = true,
                known = &mut end, if outcome.is_none() => {
                    outcome = Some(known);
                    ending.cancel();
                }
                piece = pieces.recv(), if !is_told => match piece {
                    Some(piece) => put(self.outgoing, &mut out, piece),
                    None => is_told = true,
                },
                Some(bytes) = self.answers.recv() => out.extend_from_slice(&bytes),
            }
            if !out.is_empty() {
                self.activity.mark();
                send(to, &mut out).await?;
            }
            match outcome.take_if(|_| is_told) {
                Some(outcome) => return Ok(outcome),
                None if is_told && ends_with_output => return Ok(Outcome::Success),
                None => {}
            }
        }
    }
}

/// A piece of an output, or its end, which is empty.
fn put(outgoing: &Outgoing, out: &mut BytesMut, (which, bytes): (Output, Bytes)) {
    match bytes.is_empty() {
        true => outgoing.ended(out, which),
        false => outgoing.output(out, which, &bytes),
    }
}

async fn end(exit: Option<oneshot::Receiver<i32>>, over: &CancellationToken) -> Outcome {
    match exit {
        Some(exit) => match exit.await {
            Ok(code) => Outcome::of_code(code),
            Err(_) => Outcome::Failure("nobody knows how the command ended".into()),
        },
        None => {
            over.cancelled().await;
            Outcome::Success
        }
    }
}

async fn read(
    from: Option<OwnedFd>,
    which: Output,
    to: mpsc::Sender<(Output, Bytes)>,
    ending: CancellationToken,
) {
    let Some(pipe) = from.and_then(|fd| Pipe::new(fd).ok()) else { return };
    let mut buffer = vec![0; PIECE];
    loop {
        let read = if ending.is_cancelled() {
            tokio::time::timeout(DRAIN, pipe.read(&mut buffer)).await.unwrap_or(Ok(0))
        } else {
            tokio::select! {
                biased;
                read = pipe.read(&mut buffer) => read,
                () = ending.cancelled() => continue,
            }
        };
        let Ok(n @ 1..) = read else { break };
        if to.send((which, Bytes::copy_from_slice(&buffer[..n]))).await.is_err() {
            return;
        }
    }
    // Who listens no more needs no end.
    let _ = to.send((which, Bytes::new())).await;
}

async fn send(to: &mut (impl AsyncWrite + Unpin), out: &mut BytesMut) -> io::Result<()> {
    to.write_all(out).await?;
    to.flush().await?;
    out.clear();
    Ok(())
}
