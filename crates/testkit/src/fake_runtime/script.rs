//! What containers do, as the test writes it down.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The life of one instance of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// CreateContainer fails with this text.
    pub create_error: Option<String>,
    /// StartContainer fails with this text and the container is left exited with code 128.
    pub start_error: Option<String>,
    /// Exit code and moment of a container that ends by itself.
    pub exit: Option<(i32, Duration)>,
    /// Exit code and delay after TERM; `None` ignores it and waits to be killed.
    pub on_term: Option<(i32, Duration)>,
}

/// The answer to an exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exec {
    Exit {
        code: i32,
        stdout: Vec<u8>,
        after: Duration,
    },
    /// Runs until its timeout, or until the container dies.
    Hang,
}

/// Decides the answer to an exec from the command and the time since the container started.
pub type ExecScript = Arc<dyn Fn(&[String], Duration) -> Exec + Send + Sync>;

#[derive(Default)]
pub(super) struct Scripts {
    behaviours: BTreeMap<(String, String), Vec<Behaviour>>,
    execs: BTreeMap<(String, String), ExecScript>,
    /// Instances so far, failed attempts included.
    instances: BTreeMap<(String, String), usize>,
}

// === impl Behaviour ===

impl Default for Behaviour {
    /// Runs forever and leaves at once when asked.
    fn default() -> Self {
        Self { create_error: None, start_error: None, exit: None, on_term: Some((143, Duration::ZERO)) }
    }
}

impl Behaviour {
    #[must_use]
    pub fn forever() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn exits(code: i32, after: Duration) -> Self {
        Self { exit: Some((code, after)), ..Self::default() }
    }

    #[must_use]
    pub fn ignores_term() -> Self {
        Self { on_term: None, ..Self::default() }
    }

    /// Needs this long to leave after TERM.
    #[must_use]
    pub fn slow_to_stop(code: i32, after: Duration) -> Self {
        Self { on_term: Some((code, after)), ..Self::default() }
    }

    #[must_use]
    pub fn fails_to_create(message: &str) -> Self {
        Self { create_error: Some(message.into()), ..Self::default() }
    }

    #[must_use]
    pub fn fails_to_start(message: &str) -> Self {
        Self { start_error: Some(message.into()), ..Self::default() }
    }
}

// === impl Exec ===

impl Exec {
    #[must_use]
    pub fn exits(code: i32) -> Self {
        Self::Exit { code, stdout: Vec::new(), after: Duration::ZERO }
    }
}

// === impl Scripts ===

impl Scripts {
    pub(super) fn set(&mut self, pod: &str, container: &str, behaviours: Vec<Behaviour>) {
        self.behaviours.insert((pod.into(), container.into()), behaviours);
    }

    pub(super) fn set_exec(&mut self, pod: &str, container: &str, script: ExecScript) {
        self.execs.insert((pod.into(), container.into()), script);
    }

    /// The behaviour of the next instance; the last one of a list repeats.
    pub(super) fn next(&mut self, pod: &str, container: &str) -> Behaviour {
        let key = (pod.to_owned(), container.to_owned());
        let n = self.instances.entry(key.clone()).or_default();
        let list = self.behaviours.get(&key).map(Vec::as_slice).unwrap_or_default();
        let behaviour = list.get(*n).or(list.last()).cloned().unwrap_or_default();
        *n += 1;
        behaviour
    }

    pub(super) fn exec(&self, pod: &str, container: &str, command: &[String], age: Duration) -> Exec {
        match self.execs.get(&(pod.to_owned(), container.to_owned())) {
            Some(script) => script(command, age),
            None => Exec::exits(0),
        }
    }
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").field("behaviours", &self.behaviours).finish_non_exhaustive()
    }
}
