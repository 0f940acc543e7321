//! How many descriptors there are, and how many of them are for clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What clients may take together; as much is kept for everything else: the runtime, probes, files, the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(usize);

/// Raises the limit of open files as far as it goes, as every Go program does at its start. Returns what holds now.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "limit of open files not raised");
        }
    }
    open_files()
}

fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

// === impl Budget ===

impl Budget {
    /// Under the limit that holds now.
    #[must_use]
    pub fn now() -> Budget {
        Budget::of(open_files())
    }

    /// Under a limit of open files.
    #[must_use]
    pub fn of(open_files: u64) -> Budget {
        Budget(usize::try_from(open_files / 2).unwrap_or(usize::MAX))
    }

    /// Descriptors for one of the listeners.
    #[must_use]
    pub fn share(self, percent: usize) -> usize {
        self.0 / 100 * percent + self.0 % 100 * percent / 100
    }
}
