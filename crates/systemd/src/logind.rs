//! The login manager, who decides when the machine goes down, and lets others delay it for a while.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::bus::wire::{Call, Message, Value};
use crate::bus::{Bus, Places, Rule};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const OBJECT: &str = "/org/freedesktop/login1";
const SIGNAL: &str = "PrepareForShutdown";
const HANG_UP: i32 = 1;
/// Pauses between looks at a setting that was changed.
const PAUSES: [u64; 5] = [100, 200, 400, 800, 1600];

/// The login manager, with its signal asked for.
#[derive(Debug)]
pub struct Logind(Bus);

/// While it lives, the machine waits before it goes down.
#[derive(Debug)]
pub struct Delay {
    _held: OwnedFd,
}

// === impl Logind ===

impl Logind {
    /// Finds it, and makes sure that it would wait as long as is needed.
    pub async fn open(places: &Places, needed: Duration) -> io::Result<Logind> {
        let mut logind = Logind(Bus::open(&places.bus).await?);
        logind.0.listen(&Rule { interface: MANAGER, member: SIGNAL, path: OBJECT, argument: None }).await?;
        if logind.longest_delay().await? < needed {
            logind.ask_for(&places.settings, needed).await?;
        }
        Ok(logind)
    }

    /// The machine waits for us from now on.
    pub async fn delay(&mut self, who: &str, why: &str) -> io::Result<Delay> {
        let arguments = ["shutdown", who, why, "delay"].map(Value::Text);
        let call = Call {
            destination: LOGIND,
            path: OBJECT,
            interface: MANAGER,
            member: "Inhibit",
            arguments: &arguments,
        };
        let (_, held) = self.0.call(&call).await?;
        held.map(|held| Delay { _held: held }).ok_or_else(|| io::Error::other("logind gave no lock"))
    }

    /// Whether the machine goes down now, or after all does not. Cancel-safe.
    pub async fn news(&mut self) -> io::Result<bool> {
        loop {
            let signal = self.0.signal().await?;
            if let Some(down) = prepares(&signal) {
                return Ok(down);
            }
        }
    }

    async fn longest_delay(&mut self) -> io::Result<Duration> {
        let call = Call {
            destination: LOGIND,
            path: OBJECT,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
            arguments: &[Value::Text(MANAGER), Value::Text("InhibitDelayMaxUSec")],
        };
        let (answer, _) = self.0.call(&call).await?;
        let delay = answer.large().map(Duration::from_micros);
        delay.ok_or_else(|| io::Error::other("logind does not say how long it would wait"))
    }

    /// Has it wait longer: by a file of ours, which it is made to read.
    async fn ask_for(&mut self, settings: &Path, needed: Duration) -> io::Result<()> {
        let (dir, seconds) = (settings.to_owned(), needed.as_secs());
        let written = tokio::task::spawn_blocking(move || {
            fs::create_dir_all(&dir)?;
            let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n");
            fs::write(dir.join("99-kubelet.conf"), text)
        });
        written.await.map_err(io::Error::other)??;
        let call = Call {
            destination: "org.freedesktop.systemd1",
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            member: "KillUnit",
            arguments: &[Value::Text("systemd-logind.service"), Value::Text("all"), Value::Int(HANG_UP)],
        };
        self.0.call(&call).await?;
        for pause in PAUSES {
            if self.longest_delay().await? >= needed {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let now = self.longest_delay().await?;
        Err(io::Error::other(format!("logind waits for {now:?} at most, and {needed:?} are needed")))
    }
}

fn prepares(signal: &Message) -> Option<bool> {
    (signal.interface == MANAGER && signal.member == SIGNAL).then(|| signal.truth())?
}
