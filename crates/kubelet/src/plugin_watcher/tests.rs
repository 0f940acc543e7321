#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener;
use std::path::Path;

use plugins::PluginType;
use plugins::registration::registration_server::{Registration, RegistrationServer};
use plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::io::AsyncWriteExt;
use tonic::{Request, Response, Status};

use super::*;
use crate::volumes::drivers::Measured;
use crate::volumes::drivers::registration::Registrar;

#[test]
fn sockets_are_found_wherever_they_are_and_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(dir.path().join("file.sock"), "").unwrap();
    let plain = dir.path().join("one.sock");
    let _one = UnixListener::bind(&plain).unwrap();
    let _two = UnixListener::bind(deep.join("two.sock")).unwrap();
    let _hidden = UnixListener::bind(dir.path().join(".hidden.sock")).unwrap();
    let before = scan::sockets(dir.path());
    assert_eq!(before.keys().cloned().collect::<Vec<_>>(), [deep.join("two.sock"), plain.clone()]);
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(scan::sockets(dir.path()), before, "a new mode is no new socket");
    let _other = UnixListener::bind(dir.path().join("other.sock")).unwrap();
    std::fs::rename(dir.path().join("other.sock"), &plain).unwrap();
    assert_ne!(scan::sockets(dir.path()), before, "made anew");
}

#[tokio::test]
async fn a_new_socket_is_heard_of_even_in_a_new_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut inotify = scan::open_inotify();
    scan::watch_below(&mut inotify.as_ref().unwrap().watches(), dir.path());
    std::fs::create_dir(dir.path().join("d")).unwrap();
    scan::changed(&mut inotify).await;
    scan::watch_below(&mut inotify.as_ref().unwrap().watches(), dir.path());
    let _socket = UnixListener::bind(dir.path().join("d/x.sock")).unwrap();
    scan::changed(&mut inotify).await;
}

/// A plugin that calls itself something, and keeps what it is told.
#[derive(Clone)]
struct Named {
    name: String,
    told: tokio::sync::mpsc::UnboundedSender<String>,
}

#[tonic::async_trait]
impl Registration for Named {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.name.clone(),
            endpoint: "/nowhere/csi.sock".into(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let _ = self.told.send(request.into_inner().error);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// What a plugin of this name that comes by this socket is told first.
async fn told(socket: &Path, name: &str) -> String {
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let named = RegistrationServer::new(Named { name: name.to_owned(), told });
    tokio::spawn(tonic::transport::Server::builder().add_service(named).serve_with_incoming(incoming));
    hears.recv().await.unwrap()
}

fn registrar() -> Registrar {
    let measured = Measured { metrics: Arc::default(), clock: crate::testing::clock() };
    Registrar { drivers: Arc::default(), csi_node: None, measured }
}

/// Does to whoever comes what its kind does: nothing, nonsense, another protocol, too much, or it hangs up.
async fn be_hostile(socket: PathBuf, kind: usize) {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let mut held = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        match kind % 5 {
            0 => held.push(stream),
            1 => drop(stream.write_all(&[0xff; 4096]).await),
            2 => drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await),
            3 => drop(tokio::spawn(async move { while stream.write_all(&[0; 64 << 10]).await.is_ok() {} })),
            _ => drop(stream),
        }
    }
}

#[tokio::test]
async fn hostile_sockets_and_names_that_lead_elsewhere_hold_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (registrar, token) = (registrar(), CancellationToken::new());
    let handlers = Handlers::default().with(PluginType::Csi, Arc::new(registrar.clone()));
    let running = tokio::spawn(PluginWatcher::new(dir.path().to_owned(), handlers).run(token.clone()));
    for kind in 0..200 {
        tokio::spawn(be_hostile(dir.path().join(format!("{kind}.sock")), kind));
    }
    let long = "d".repeat(64);
    let names =
        ["", "..", "../../../etc", "a/b", ".hidden", "d..test", "d test", "d\n.test", "d\0", "d_.", &long];
    for (n, name) in names.into_iter().enumerate() {
        let why = told(&dir.path().join(format!("bad-{n}.sock")), name).await;
        assert!(why.contains("plugin validation failed") && why.contains("driver name"), "{name:?}: {why}");
    }
    let why = told(&dir.path().join("good.sock"), "Good.test").await;
    assert!(why.contains("plugin registration failed"), "its node service is not there: {why}");
    assert!(registrar.drivers.subscribe().borrow().is_empty());
    assert!(!running.is_finished());
    token.cancel();
    running.await.unwrap();
}
