//! Hands on nf_tables: whole transactions, dumps, and word of what others do.
//!
//! The language itself is the crate `nft`. A transaction is one datagram, and the kernel has done with it when
//! the send returns: all of it happened, or nothing.

mod monitor;
mod socket;

use std::io;

use nft::wire::{FLAG_INTERRUPTED, Header, Messages};
use nft::{Batch, Message, Notice, Question, TableId};
use rustix::io::Errno;

pub use monitor::{Monitor, Sighting};
use socket::Socket;

/// A dump that was disturbed so often is given up: somebody changes tables without a pause.
const DUMP_TRIES: u32 = 20;

/// A conversation with nf_tables of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
    sequence: u32,
    buffer: Box<[u8]>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to nf_tables: {act}: {cause}")]
    Socket { act: &'static str, cause: io::Error },
    #[error("nf_tables refused step {} of {count} on table {table} ({step}): {cause}{}", index + 1, hint(text))]
    Refused { table: TableId, index: usize, count: usize, step: String, cause: Errno, text: String },
    #[error("nf_tables refused to list table {table}: {cause}")]
    NotListed { table: TableId, cause: Errno },
    /// The kernel's answer was lost: it may have happened or not.
    #[error("nf_tables did not say what became of a transaction on table {table}")]
    Unanswered { table: TableId },
    #[error("table {table} changed so often that it could not be listed")]
    Disturbed { table: TableId },
    #[error("nobody wanted to hear the rest of table {table}")]
    Left { table: TableId },
}

/// What an answer said.
enum Answer {
    Done,
    Acknowledged(u32),
    Failed { sequence: u32, cause: Errno, text: String },
    Told(Notice),
    Nothing,
}

// === impl Nftables ===

impl Nftables {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(0)?, sequence: 1, buffer: vec![0; 1 << 17].into() })
    }

    /// By this number the monitor tells our changes from those of others.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Makes all changes at once, or none and says which one was refused.
    pub fn commit(&mut self, table: &TableId, messages: &[Message]) -> Result<(), Error> {
        if messages.is_empty() {
            return Ok(());
        }
        let batch = Batch::new(table, messages, self.sequence);
        let Some(last) = batch.last() else { return Ok(()) };
        // The envelope at the end has a number as well.
        self.sequence = last.wrapping_add(2);
        self.socket.send(&batch.bytes)?;
        let (mut failed, mut is_done, mut is_lost) = (None, false, false);
        loop {
            let len = match self.socket.receive_now(&mut self.buffer) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(Errno::NOBUFS) => {
                    is_lost = true;
                    continue;
                }
                Err(e) => return Err(socket_error("receiving", e)),
            };
            for (header, body) in Messages(&self.buffer[..len]) {
                match read_answer(header, body) {
                    Answer::Failed { sequence, cause, text } => {
                        failed.get_or_insert((sequence, cause, text));
                    }
                    Answer::Acknowledged(sequence) => is_done |= sequence == last,
                    Answer::Done | Answer::Told(_) | Answer::Nothing => {}
                }
            }
        }
        match failed {
            Some((sequence, cause, text)) => Err(refused(table, messages, &batch, sequence, cause, text)),
            None if is_done && !is_lost => Ok(()),
            None => Err(Error::Unanswered { table: table.clone() }),
        }
    }

    /// Hears about everything of one kind in the table. What was heard counts only if all of it was heard
    /// between two transactions, so `forget` is called before each further try. `hear` ends it by answering false; the
    /// kernel still has things to say then, so this conversation is over.
    pub fn ask<T>(
        &mut self,
        table: &TableId,
        question: &Question<'_>,
        heard: &mut T,
        mut forget: impl FnMut(&mut T),
        mut hear: impl FnMut(&mut T, Notice) -> bool,
    ) -> Result<(), Error> {
        for _ in 0..DUMP_TRIES {
            forget(heard);
            if self.ask_once(table, question, |notice| hear(heard, notice))? {
                return Ok(());
            }
        }
        Err(Error::Disturbed { table: table.clone() })
    }

    /// Whether nothing changed in between.
    fn ask_once(
        &mut self,
        table: &TableId,
        question: &Question<'_>,
        mut hear: impl FnMut(Notice) -> bool,
    ) -> Result<bool, Error> {
        let asked = self.sequence;
        self.sequence = asked.wrapping_add(1);
        self.socket.send(&question.write(table, asked))?;
        let mut is_whole = true;
        loop {
            let len = match self.socket.receive(&mut self.buffer) {
                Ok(len) => len,
                Err(Errno::NOBUFS) => {
                    is_whole = false;
                    continue;
                }
                Err(e) => return Err(socket_error("receiving", e)),
            };
            for (header, body) in Messages(&self.buffer[..len]) {
                if header.sequence != asked {
                    continue;
                }
                is_whole &= header.flags & FLAG_INTERRUPTED == 0;
                match read_answer(header, body) {
                    Answer::Done | Answer::Acknowledged(_) => return Ok(is_whole),
                    // A dump of elements ends so when its set changed under it.
                    Answer::Failed { cause: Errno::INTR | Errno::AGAIN, .. } => return Ok(false),
                    Answer::Failed { cause, .. } => {
                        return Err(Error::NotListed { table: table.clone(), cause });
                    }
                    Answer::Told(notice) if notice.table == *table => {
                        if !hear(notice) {
                            return Err(Error::Left { table: table.clone() });
                        }
                    }
                    Answer::Told(_) | Answer::Nothing => {}
                }
            }
        }
    }
}

// === impl Error ===

impl Error {
    /// What the kernel said, if it was the kernel.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused { cause, .. } | Error::NotListed { cause, .. } => Some(*cause),
            Error::Socket { .. }
            | Error::Unanswered { .. }
            | Error::Disturbed { .. }
            | Error::Left { .. } => None,
        }
    }

    /// Whether it says that there is no nf_tables here, or not of this family.
    pub fn is_about_a_kernel_without(&self) -> bool {
        match self {
            Error::Socket { cause, .. } => cause.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()),
            _ => self.errno() == Some(Errno::OPNOTSUPP),
        }
    }
}

fn socket_error(act: &'static str, cause: Errno) -> Error {
    Error::Socket { act, cause: cause.into() }
}

fn hint(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn refused(
    table: &TableId,
    messages: &[Message],
    batch: &Batch,
    sequence: u32,
    cause: Errno,
    text: String,
) -> Error {
    let index = batch.index_of(sequence);
    let step = match index {
        None => "the transaction as a whole".to_owned(),
        Some(index) => describe(&messages[index]),
    };
    let index = index.unwrap_or(messages.len());
    Error::Refused { table: table.clone(), index, count: messages.len(), step, cause, text }
}

fn describe(message: &Message) -> String {
    match message {
        Message::AddTable | Message::AddTableFor(_) => "adding the table".into(),
        Message::DeleteTable => "deleting the table".into(),
        Message::AddChain(chain) => format!("adding chain {}", chain.name),
        Message::DeleteChain(name) => format!("deleting chain {name}"),
        Message::FlushChain(name) => format!("emptying chain {name}"),
        Message::AddRule(chain, _) => format!("adding a rule to chain {chain}"),
        Message::AddSet(set) => format!("adding set {}", set.name),
        Message::DeleteSet(name) => format!("deleting set {name}"),
        Message::AddElements(set, elements) | Message::AddNewElements(set, elements) => {
            format!("adding {} elements to set {set}", elements.len())
        }
        Message::DeleteElements(set, elements) => {
            format!("deleting {} elements from set {set}", elements.len())
        }
    }
}

fn read_answer(header: Header, body: &[u8]) -> Answer {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    let code = || body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match header.kind {
        ERROR | DONE if code() < 0 => Answer::Failed {
            sequence: header.sequence,
            cause: Errno::from_raw_os_error(-code()),
            text: explanation(header, body),
        },
        ERROR => Answer::Acknowledged(header.sequence),
        DONE => Answer::Done,
        _ => Notice::read(header, body).map_or(Answer::Nothing, Answer::Told),
    }
}

/// What the kernel adds to an error number, if it does.
fn explanation(header: Header, body: &[u8]) -> String {
    const HAS_ATTRIBUTES: u16 = 0x200;
    const TEXT: u16 = 1;
    let attributes = if header.flags & HAS_ATTRIBUTES == 0 { None } else { body.get(4 + 16..) };
    let text = attributes.and_then(|bytes| nft::wire::Attributes(bytes).get(TEXT)?.text());
    text.unwrap_or_default().to_owned()
}
