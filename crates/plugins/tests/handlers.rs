//! Plugins of several types on real sockets.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use plugins::registration::registration_server::{Registration, RegistrationServer};
use plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use plugins::{Handler, Handlers, Known, PluginType};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

/// A plugin that says this of itself, and keeps what it is told.
struct Tiny {
    info: PluginInfo,
    told: mpsc::UnboundedSender<RegistrationStatus>,
}

#[tonic::async_trait]
impl Registration for Tiny {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let _ = self.told.send(request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Serves a plugin; what it is told comes out.
fn serve(socket: &Path, kind: &str, name: &str) -> mpsc::UnboundedReceiver<RegistrationStatus> {
    let (told, hears) = mpsc::unbounded_channel();
    let info = PluginInfo { r#type: kind.to_owned(), name: name.to_owned(), ..PluginInfo::default() };
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let server = RegistrationServer::new(Tiny { info, told });
    tokio::spawn(tonic::transport::Server::builder().add_service(server).serve_with_incoming(incoming));
    hears
}

/// Writes down what is asked of it. It takes neither `bad` nor `late`.
#[derive(Default)]
struct Book(Mutex<Vec<String>>);

impl Book {
    fn write(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[async_trait]
impl Handler for Book {
    fn validate(&self, info: &PluginInfo, _: &Path) -> Result<(), String> {
        self.write(format!("validate {}", info.name));
        if info.name == "bad" { Err("bad name".to_owned()) } else { Ok(()) }
    }

    async fn register(&self, info: &PluginInfo, _: &Path) -> Result<(), String> {
        self.write(format!("register {}", info.name));
        if info.name == "late" { Err("too late".to_owned()) } else { Ok(()) }
    }

    fn deregister(&self, name: &str, _: &Path) {
        self.write(format!("deregister {name}"));
    }
}

#[tokio::test]
async fn every_type_has_its_handler_and_what_came_of_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (csi, dra) = (Arc::new(Book::default()), Arc::new(Book::default()));
    let handlers = Handlers::default().with(PluginType::Csi, csi.clone()).with(PluginType::Dra, dra.clone());
    let no_handler = "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin at socket ";
    let invalid = "RegisterPlugin error -- plugin validation failed with err: bad name";
    let failed = "RegisterPlugin error -- plugin registration failed with err: too late";
    for (n, (kind, name, error, of_csi, of_dra)) in [
        ("CSIPlugin", "disk", "", &["validate disk", "register disk"][..], &[][..]),
        ("DRAPlugin", "gpu", "", &[], &["validate gpu", "register gpu"]),
        ("DevicePlugin", "card", no_handler, &[], &[]),
        ("CSIPlugin", "bad", invalid, &["validate bad"], &[]),
        ("DRAPlugin", "late", failed, &[], &["validate late", "register late"]),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = dir.path().join(format!("{n}.sock"));
        let mut hears = serve(&socket, kind, name);
        let done = handlers.register(&socket, &Known::default()).await;
        let told = hears.recv().await.unwrap();
        assert_eq!(done.is_ok(), error.is_empty(), "{name}");
        assert_eq!(told.plugin_registered, error.is_empty(), "{name}");
        assert!(told.error.starts_with(error) && told.error.is_empty() == error.is_empty(), "{told:?}");
        assert_eq!((csi.lines(), dra.lines()), (owned(of_csi), owned(of_dra)), "{name}");
    }
}

#[tokio::test]
async fn a_plugin_that_is_gone_is_taken_out_by_the_handler_that_let_it_in() {
    let dir = tempfile::tempdir().unwrap();
    let (csi, dra) = (Arc::new(Book::default()), Arc::new(Book::default()));
    let handlers = Handlers::default().with(PluginType::Csi, csi.clone()).with(PluginType::Dra, dra.clone());
    let socket = dir.path().join("gpu.sock");
    let _hears = serve(&socket, "DRAPlugin", "gpu");
    let known = Known::default();
    assert_eq!(handlers.deregister(&socket, &known), None, "nobody was let in");
    handlers.register(&socket, &known).await.unwrap();
    assert_eq!(handlers.deregister(&socket, &known).as_deref(), Some("gpu"));
    assert_eq!(csi.lines(), owned(&[]));
    assert_eq!(dra.lines().last().map(String::as_str), Some("deregister gpu"));
}

#[tokio::test]
async fn a_socket_without_a_plugin_is_an_error_and_nobodys() {
    let known = Known::default();
    let why = Handlers::default().register(Path::new("/nowhere.sock"), &known).await.unwrap_err();
    assert!(why.starts_with("RegisterPlugin error -- failed to get plugin info using RPC GetInfo"), "{why}");
    assert_eq!(Handlers::default().deregister(Path::new("/nowhere.sock"), &known), None);
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}
