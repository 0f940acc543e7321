//! Messages between the daemon and a keeper. Descriptors travel beside them.

use crate::wire::*;

/// What the daemon asks. Everything but [`Ask::Quit`] is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The first descriptor is the recipe, so many bytes; the others are its slots.
    Launch {
        len: u32,
    },
    Release,
    Ack,
    Signal(u32),
    List,
    Log,
    Tee,
    Input,
    CloseInput,
    Quit,
    /// Output, or errors.
    Stream(u32),
    /// A bit for each descriptor that comes along; the process id follows.
    Adopt {
        sent: u32,
        pid: u32,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// 128 + signal when a signal ended it.
    pub code: i32,
    /// Of the wall clock, since 1970.
    pub nanos: i64,
    /// Processes of its cgroup that the kernel killed for memory.
    pub killed_for_memory: u64,
}

/// What a keeper says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    Done,
    Refused(i32),
    Launched { pid: i32 },
    Held(u32),
    Started,
    Failed { op: u32, errno: i32 },
    Exited(Exit),
    Job { pid: i32, state: State },
    Terminal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Setup,
    Running,
    Exited,
}

/// A message of a keeper: the request it answers (0: none), the job it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub request: u32,
    pub job: u32,
    pub what: Tell,
}

#[must_use]
pub fn encode(ask: Ask, request: u32, job: u32) -> Vec<u8> {
    let (kind, argument) = match ask {
        Ask::Launch { len } => (LAUNCH, len),
        Ask::Release => (RELEASE, 0),
        Ask::Ack => (ACK, 0),
        Ask::Signal(signal) => (SIGNAL, signal),
        Ask::List => (LIST, 0),
        Ask::Log => (LOG, 0),
        Ask::Tee => (TEE, 0),
        Ask::Input => (INPUT, 0),
        Ask::CloseInput => (CLOSE_INPUT, 0),
        Ask::Quit => (QUIT, 0),
        Ask::Stream(which) => (STREAM, which),
        Ask::Adopt { sent, .. } => (ADOPT, sent),
    };
    let payload = if let Ask::Adopt { pid, .. } = ask { Some(pid) } else { None };
    let words = [kind, request, job, argument].into_iter().chain(payload);
    words.flat_map(u32::to_le_bytes).collect()
}

/// None for what this version does not know: a newer keeper may say more.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Told> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
    let (kind, request, job, argument) = (word(0)?, word(4)?, word(8)?, word(12)?);
    let number = argument.cast_signed();
    let what = match kind {
        DONE => Tell::Done,
        REFUSED => Tell::Refused(number),
        LAUNCHED => Tell::Launched { pid: number },
        HELD => Tell::Held(argument),
        STARTED => Tell::Started,
        FAILED => Tell::Failed { op: word(HEAD)?, errno: number },
        EXITED => {
            let seconds = i64::try_from(long(HEAD)?).ok()?;
            let nanos =
                seconds.checked_mul(1_000_000_000)?.checked_add(i64::try_from(long(HEAD + 8)?).ok()?)?;
            Tell::Exited(Exit { code: number, nanos, killed_for_memory: long(HEAD + 16)? })
        }
        JOB => {
            let state = match word(HEAD)? {
                STATE_SETUP => State::Setup,
                STATE_RUNNING => State::Running,
                STATE_EXITED => State::Exited,
                _ => return None,
            };
            Tell::Job { pid: number, state }
        }
        TERMINAL => Tell::Terminal,
        _ => return None,
    };
    Some(Told { request, job, what })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_exit_carries_when_and_why() {
        let mut bytes = Vec::new();
        for word in [EXITED, 0, 7, 137] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for long in [5u64, 9, 2] {
            bytes.extend_from_slice(&long.to_le_bytes());
        }
        let exit = Exit { code: 137, nanos: 5_000_000_009, killed_for_memory: 2 };
        assert_eq!(decode(&bytes).unwrap(), Told { request: 0, job: 7, what: Tell::Exited(exit) });
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn asking_is_sixteen_bytes() {
        let bytes = encode(Ask::Signal(15), 3, 4);
        assert_eq!(bytes[..4], SIGNAL.to_le_bytes());
        assert_eq!(bytes[12..], 15u32.to_le_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
