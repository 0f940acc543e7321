//! How much a running process logs, and the words in which it may be asked for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A dial that the log reads and a server turns. All clones are the same dial.
#[derive(Clone, Debug, Default)]
pub struct Verbosity(Arc<AtomicU32>);

/// What is refused is shown in part only: it may be anything.
const SHOWN: usize = 64;

// === impl Verbosity ===

impl Verbosity {
    pub fn new(level: u32) -> Self {
        Self(Arc::new(level.into()))
    }

    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it to what somebody wrote to `/debug/flags/v`. What was set, or upstream's words for what is no level.
    pub fn ask(&self, text: &str) -> Result<u32, String> {
        let level = text.parse::<i32>().ok().and_then(|level| u32::try_from(level).ok());
        let Some(level) = level else {
            let shown: String = text.chars().take(SHOWN).collect();
            return Err(format!("strconv.ParseUint: parsing {shown:?}: invalid syntax\n"));
        };
        self.0.store(level, Ordering::Relaxed);
        Ok(level)
    }

    /// What upstream answers when it was set.
    pub fn answer(level: u32) -> String {
        format!("successfully set klog.logging.verbosity to {level}\n")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_set_and_anything_else_is_not() {
        let dial = Verbosity::new(2);
        let same = dial.clone();
        assert_eq!(dial.ask("5"), Ok(5));
        assert_eq!(same.get(), 5);
        for text in ["", "-1", "loud", "5\n", "4294967296", "1.5"] {
            assert!(dial.ask(text).is_err(), "{text:?}");
        }
        let long = dial.ask(&"x".repeat(1000)).unwrap_err();
        assert!(long.len() < 200, "{long}");
        assert_eq!(dial.get(), 5);
    }
}
