//! Ctrl-C and TERM as something one can look at.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use fixture::{Doing, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Somebody wants us to stop.
#[derive(Debug)]
pub(crate) struct Interrupt {
    came: Receiver<()>,
}

// === impl Interrupt ===

impl Interrupt {
    /// From here on the signals no longer end the program.
    pub(crate) fn catch() -> Result<Self> {
        let (tell, came) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.doing(|| "preparing to catch signals".into())?;
        let entered = runtime.enter();
        let listen = |kind| signal(kind).doing(|| "catching a signal".into());
        let (mut int, mut term) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        drop(entered);
        thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                    }
                    let _ = tell.send(());
                }
            });
        });
        Ok(Self { came })
    }

    /// Waits that long, or until the signal comes: then it is true.
    pub(crate) fn within(&self, time: Duration) -> bool {
        !matches!(self.came.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }
}
