//! Whether this machine can carry containers in user namespaces: tried once, at the start.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use runtime_core::container::namespace;
use runtime_core::recipe::{Launch, Op};
use runtime_core::sandbox::MADE;
use runtime_core::userns::Mapping;
use tonic::Status;

use crate::daemon::{Daemon, blocking, failed};
use crate::jobs::NAMESPACES;
use crate::keeper::{Happened, Keeper};
use crate::keepers::SOCKET;
use crate::{rootfs, userns};

/// Nobody's.
const TRIAL: Mapping = Mapping { host: 65_536, length: 65_536 };
const TRIAL_DIR: &str = "trial";
const TRYING: Duration = Duration::from_secs(10);

/// Why this machine cannot have containers in user namespaces, if it cannot: tried, with the directory that roots of
/// containers lie in.
pub(crate) async fn user_namespaces(daemon: &Daemon) -> Result<(), Status> {
    let dirs = [daemon.state_dir.join(TRIAL_DIR), daemon.containers_dir().join(TRIAL_DIR)];
    let [state, root] = dirs.clone();
    let opened = blocking(move || {
        let make = || {
            // Of a daemon that was killed while it tried.
            if let Ok(socket) =
                sys::fd::open_dir(&state).and_then(|dir| sys::message::connect(dir, OsStr::new(SOCKET)))
            {
                let quit = runtime_core::message::encode(runtime_core::message::Ask::Quit, 0, 0);
                let _ = sys::message::send(socket, &quit, &[]);
            }
            for dir in [&state, &root] {
                rootfs::remove(dir.parent().unwrap_or(Path::new("/")), TRIAL_DIR)?;
            }
            for name in ["lower", "upper", "work"] {
                fs::create_dir_all(root.join(name))?;
            }
            fs::create_dir_all(&state)?;
            sys::fd::open_dir(&state)
        };
        make().map_err(failed("make directories for a trial"))
    });
    let (keeper, mut events) =
        Keeper::start(&daemon.program, opened.await?, OsStr::new(SOCKET)).map_err(failed("start"))?;
    let ops = vec![Op::Hold(MADE), Op::Exit(0)];
    let launch = Launch { namespaces: namespace::USER.into(), ops, ..Launch::default() };
    let tried = tokio::time::timeout(TRYING, async {
        let pid = keeper.launch(NAMESPACES, &launch, &[]).await.map_err(failed("make a user namespace"))?.pid;
        match events.recv().await {
            Some(event) if matches!(event.what, Happened::Held(_)) => {}
            _ => return Err(failed("make a user namespace")("the process ended")),
        }
        let root = dirs[1].clone();
        blocking(move || try_overlay(pid, &root).map_err(failed("mount id-mapped layers"))).await
    });
    let tried = tried.await.unwrap_or_else(|_| Err(Status::deadline_exceeded("it takes too long")));
    let _ = keeper.signal(NAMESPACES, crate::signals::SIGKILL).await;
    let _ = keeper.quit().await;
    let cleared = blocking(move || {
        for dir in &dirs {
            let parent = dir.parent().unwrap_or(Path::new("/"));
            rootfs::remove(parent, TRIAL_DIR).map_err(failed(format!("remove {}", dir.display())))?;
        }
        Ok(())
    });
    tried.and(cleared.await)
}

fn try_overlay(pid: i32, root: &Path) -> io::Result<()> {
    userns::write(pid, TRIAL)?;
    let users = File::open(format!("/proc/{pid}/ns/user"))?;
    let (lower, upper, work) = (root.join("lower"), root.join("upper"), root.join("work"));
    sys::detached::overlay_for(&users, &[&lower], &upper, &work).map(drop)
}
