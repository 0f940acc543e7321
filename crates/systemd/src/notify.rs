//! Telling systemd that we are up, and that we still are.

use std::ffi::OsString;
use std::time::Duration;

use base::class::{Class, Classify};
use tokio_util::sync::CancellationToken;

/// systemd's side of the contract, as it stands in the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Systemd {
    /// `NOTIFY_SOCKET`.
    pub socket: Option<OsString>,
    /// `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub watchdog_usec: Option<String>,
    pub watchdog_pid: Option<String>,
}

/// A watchdog that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchdogError {
    #[error("configure watchdog: WATCHDOG_USEC {0:?} is not a positive number")]
    Malformed(String),
    #[error("configure watchdog timeout too small: {0:?}")]
    TooShort(Duration),
}

impl Classify for WatchdogError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

// === impl Systemd ===

impl Systemd {
    /// Start-up is finished.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// How often systemd wants to hear of us; none when it does not, or means another process.
    pub fn watchdog(&self, own_pid: u32) -> Result<Option<Duration>, WatchdogError> {
        let Some(text) = &self.watchdog_usec else { return Ok(None) };
        let usec = text.parse::<u64>().ok().filter(|n| *n > 0);
        let limit = Duration::from_micros(usec.ok_or_else(|| WatchdogError::Malformed(text.clone()))?);
        if self.watchdog_pid.as_ref().is_some_and(|pid| *pid != own_pid.to_string()) {
            return Ok(None);
        }
        if limit <= Duration::from_secs(1) {
            return Err(WatchdogError::TooShort(limit));
        }
        Ok(Some(limit))
    }

    /// Says that we are well, twice per limit, as long as the verdict says so. A sick agent falls silent,
    /// and systemd restarts it.
    pub async fn watch(
        &self,
        limit: Duration,
        verdict: impl Fn() -> Result<(), String>,
        token: CancellationToken,
    ) {
        loop {
            match verdict() {
                Ok(()) => self.tell("WATCHDOG=1"),
                Err(error) => tracing::error!(error, "watchdog not notified: the agent is not well"),
            }
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(limit / 2) => {}
            }
        }
    }

    fn tell(&self, state: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = sys::notify::send(socket, state) {
            tracing::warn!(state, %error, "systemd not notified");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_watchdog_is_taken_at_its_word() {
        let with = |usec: &str, pid: Option<&str>| Systemd {
            socket: None,
            watchdog_usec: Some(usec.into()),
            watchdog_pid: pid.map(Into::into),
        };
        assert_eq!(Systemd::default().watchdog(7), Ok(None));
        assert_eq!(with("30000000", Some("7")).watchdog(7), Ok(Some(Duration::from_secs(30))));
        assert_eq!(with("30000000", Some("8")).watchdog(7), Ok(None));
        assert_eq!(with("1000000", None).watchdog(7), Err(WatchdogError::TooShort(Duration::from_secs(1))));
        assert!(matches!(with("soon", None).watchdog(7), Err(WatchdogError::Malformed(_))));
        assert!(matches!(with("0", None).watchdog(7), Err(WatchdogError::Malformed(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sick_agent_falls_silent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let heard = UnixDatagram::bind(&path).unwrap();
        heard.set_nonblocking(true).unwrap();
        let hear = || {
            let mut buffer = [0; 64];
            heard.recv(&mut buffer).ok().map(|n| String::from_utf8(buffer[..n].to_vec()).unwrap())
        };
        let systemd = Systemd { socket: Some(path.into()), ..Default::default() };
        systemd.ready();
        assert_eq!(hear().as_deref(), Some("READY=1"));
        let well = Arc::new(AtomicBool::new(true));
        let asked = well.clone();
        let verdict = move || asked.load(Ordering::Relaxed).then_some(()).ok_or("ill".to_owned());
        let token = CancellationToken::new();
        let ends = token.clone();
        let task = tokio::spawn(async move {
            systemd.watch(Duration::from_secs(10), verdict, ends).await;
        });
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!((0..3).map(|_| hear()).filter(|t| t.as_deref() == Some("WATCHDOG=1")).count(), 3);
        well.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(hear(), None);
        token.cancel();
        task.await.unwrap();
    }
}
