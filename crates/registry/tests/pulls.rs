//! Images are pulled from registries on loopback that answer as they are told to.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use images::{Digest, Store};
use registry::{Error, Login, Pull, Registries, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What was asked.
#[derive(Clone, Debug)]
struct Seen {
    path: String,
    headers: BTreeMap<String, String>,
}

#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// So many bytes of the body come, then the connection ends.
    cut: Option<usize>,
}

type Answers = dyn Fn(&Seen) -> Reply + Send + Sync;

struct Server {
    address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start(answers: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answers): (_, Arc<Answers>) = (seen.clone(), Arc::new(answers));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, log.clone(), answers.clone()));
            }
        });
        Server { address, seen, _tasks: tasks }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn asked(&self, what: &str) -> usize {
        self.seen().iter().filter(|seen| seen.path.contains(what)).count()
    }
}

async fn serve(mut stream: TcpStream, log: Arc<Mutex<Vec<Seen>>>, answers: Arc<Answers>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            // A client that tries TLS first is told in plain that it is wrong here.
            Ok(1) if head.is_empty() && byte[0] == 0x16 => return,
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let headers = fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let seen = Seen { path, headers };
    let reply = answers(&seen);
    log.lock().unwrap().push(seen);
    let mut text = format!("HTTP/1.1 {} x\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        text += &format!("{name}: {value}\r\n");
    }
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    let _ = stream.write_all(&[text.as_bytes(), b"\r\n", body].concat()).await;
    let _ = stream.shutdown().await;
}

/// What a registry has: documents and blobs by the end of their path.
#[derive(Clone)]
struct Content(BTreeMap<String, Vec<u8>>);

impl Content {
    /// An image of `count` layers, each an archive without entries and of a length of its own.
    fn image(count: usize) -> Content {
        let layers: Vec<Vec<u8>> = (1..=count).map(|i| vec![0; 1024 * (i + 1)]).collect();
        let names: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let config = format!(
            r#"{{"os":"linux","architecture":"amd64","config":{{}},"rootfs":{{"type":"layers","diff_ids":{names:?}}}}}"#
        );
        let blobs: Vec<String> = layers
            .iter()
            .map(|l| format!(r#"{{"digest":"{}","size":{}}}"#, Digest::of(l), l.len()))
            .collect();
        let config_digest = Digest::of(config.as_bytes());
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"{config_digest}","size":{}}},"layers":[{}]}}"#,
            config.len(),
            blobs.join(",")
        );
        let mut all = BTreeMap::new();
        all.insert(format!("manifests/{}", Digest::of(manifest.as_bytes())), manifest.clone().into_bytes());
        all.insert("manifests/v1".into(), manifest.into_bytes());
        all.insert(format!("blobs/{config_digest}"), config.into_bytes());
        for layer in layers {
            all.insert(format!("blobs/{}", Digest::of(&layer)), layer);
        }
        Content(all)
    }

    fn reply(&self, seen: &Seen) -> Reply {
        let path = seen.path.split('?').next().unwrap_or_default();
        match self.0.iter().find(|(end, _)| path == format!("/v2/team/app/{end}")) {
            Some((_, body)) => Reply { status: 200, body: body.clone(), ..Reply::default() },
            None => {
                let body =
                    br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#.to_vec();
                Reply { status: 404, body, ..Reply::default() }
            }
        }
    }
}

struct Place {
    dir: tempfile::TempDir,
    store: Store,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        Place { dir, store }
    }

    fn hosts(&self, registry: &str, text: &str) {
        let dir = self.dir.path().join("certs.d").join(registry);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("hosts.toml"), text).unwrap();
    }

    async fn pull(&self, name: &str, login: Option<Login>) -> Result<Arc<images::Image>, Error> {
        let settings = Settings { hosts_dir: Some(self.dir.path().join("certs.d")), ..Settings::default() };
        Registries::new(settings).pull(&self.store, &Pull { name: name.to_owned(), login }).await
    }

    fn left(&self) -> usize {
        count(&self.dir.path().join("store/tmp")) + count(&self.dir.path().join("store/layers"))
    }
}

fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

fn ann() -> Option<Login> {
    Some(Login { username: "ann".into(), password: "secret".into(), ..Login::default() })
}

const ANN: &str = "Basic YW5uOnNlY3JldA==";

fn is(seen: &Seen, name: &str, value: &str) -> bool {
    seen.headers.get(name).is_some_and(|found| found == value)
}

#[tokio::test]
async fn an_image_is_pulled_and_what_is_there_is_not_asked_for_again() {
    let content = Content::image(3);
    let server = Server::start(move |seen| content.reply(seen)).await;
    let place = Place::new();
    let name = format!("{}/team/app:v1", server.address);
    let image = place.pull(&name, None).await.unwrap();
    assert_eq!((image.tags.as_slice(), image.layers.len()), (&[name.clone()][..], 3));
    let by_digest = place.pull(&image.digests[0], None).await.unwrap();
    assert_eq!((by_digest.id.as_str(), server.asked(&image.layers[0].to_string())), (image.id.as_str(), 1));
    assert_eq!(count(&place.dir.path().join("store/tmp")), 0);
}

#[tokio::test]
async fn a_token_is_fetched_with_the_login_and_goes_to_no_other_host() {
    let content = Content::image(1);
    let blobs = content.clone();
    let storage = Server::start(move |seen| blobs.reply(seen)).await;
    let elsewhere = storage.address.clone();
    let server = Server::start(move |seen| {
        if seen.path.starts_with("/token") {
            let good = is(seen, "authorization", ANN)
                && seen.path == "/token?service=reg&scope=repository%3Ateam%2Fapp%3Apull";
            let status = if good { 200 } else { 401 };
            return Reply { status, body: br#"{"token":"t0ken"}"#.to_vec(), ..Reply::default() };
        }
        let host = seen.headers["host"].clone();
        if !is(seen, "authorization", "Bearer t0ken") {
            let value = format!(r#"Bearer realm="http://{host}/token",service="reg""#);
            return Reply {
                status: 401,
                headers: vec![("www-authenticate".into(), value)],
                ..Reply::default()
            };
        }
        if seen.path.contains("/blobs/") {
            let to = format!("http://{elsewhere}{}?signature=x", seen.path);
            return Reply { status: 307, headers: vec![("location".into(), to)], ..Reply::default() };
        }
        content.reply(seen)
    })
    .await;
    let place = Place::new();
    place.hosts(&server.address, &format!("server = \"http://{}\"", server.address));
    let name = format!("{}/team/app:v1", server.address);
    place.pull(&name, ann()).await.unwrap();
    assert_eq!(server.asked("/token"), 1);
    assert!(storage.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
    let error = Place::new().pull(&name, None).await.unwrap_err();
    assert!(matches!(error, Error::Login { .. }) && !format!("{error:?}").contains("secret"), "{error}");
}

#[tokio::test]
async fn a_layer_that_breaks_off_goes_on_where_it_was() {
    let content = Content::image(1);
    let server = Server::start(move |seen| {
        let mut reply = content.reply(seen);
        if reply.body.len() != 2048 {
            return reply;
        }
        match seen
            .headers
            .get("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok())
        {
            None => Reply { cut: Some(700), ..reply },
            Some(from) => {
                reply.headers.push(("content-range".into(), format!("bytes {from}-2047/2048")));
                let cut = (from < 1000).then_some(500);
                Reply { status: 206, body: reply.body.split_off(from), cut, ..reply }
            }
        }
    })
    .await;
    let place = Place::new();
    place.pull(&format!("{}/team/app:v1", server.address), None).await.unwrap();
    let ranges: Vec<String> =
        server.seen().iter().filter_map(|seen| seen.headers.get("range").cloned()).collect();
    assert_eq!(ranges, ["bytes=700-", "bytes=1200-"]);
}

#[tokio::test]
async fn a_mirror_is_asked_first_and_what_it_cannot_do_the_registry_does() {
    let content = Content::image(2);
    let lying = content.clone();
    // It has the manifest, lies about one blob, and breaks down at the others.
    let mirror = Server::start(move |seen| {
        let reply = lying.reply(seen);
        match (seen.path.contains("/manifests/"), reply.body.len()) {
            (true, _) => reply,
            (false, 2048) => Reply { body: vec![1; 2048], ..reply },
            _ => Reply { status: 404, ..Reply::default() },
        }
    })
    .await;
    let server = Server::start(move |seen| content.reply(seen)).await;
    let place = Place::new();
    let text = format!(
        "server = \"http://{}\"\n[host.\"http://{}\"]\n[host.\"http://{}\".header]\nx-key = \"k\"\n",
        server.address, mirror.address, mirror.address
    );
    place.hosts("registry.example", &text);
    let image = place.pull("registry.example/team/app:v1", ann()).await.unwrap();
    assert_eq!(image.tags, ["registry.example/team/app:v1"]);
    assert_eq!((server.asked("/manifests/"), server.asked("/blobs/")), (0, 3));
    let asked = mirror.seen();
    assert!(asked.iter().all(|seen| seen.path.ends_with("?ns=registry.example") && is(seen, "x-key", "k")));
    assert!(asked.iter().all(|seen| !seen.headers.contains_key("authorization")));
    assert!(server.seen().iter().all(|seen| !seen.headers.contains_key("x-key")));
}

#[tokio::test]
async fn what_is_not_there_or_not_true_leaves_nothing() {
    let content = Content::image(1);
    let server = Server::start(move |seen| {
        let reply = content.reply(seen);
        match reply.body.len() {
            2048 => Reply { body: vec![1; 2048], ..reply },
            _ => reply,
        }
    })
    .await;
    let place = Place::new();
    let missing = place.pull(&format!("{}/team/app:v2", server.address), None).await.unwrap_err();
    assert!(
        missing.is_not_found() && missing.to_string().ends_with("MANIFEST_UNKNOWN manifest unknown"),
        "{missing}"
    );
    let forged = place.pull(&format!("{}/team/app:v1", server.address), None).await.unwrap_err();
    assert!(
        forged.to_string().contains("was promised") || forged.to_string().contains("malformed"),
        "{forged}"
    );
    assert!(place.pull("team/Case", None).await.is_err());
    assert_eq!((place.left(), place.store.list().len()), (0, 0));
}

#[tokio::test]
async fn a_registry_that_is_not_there_says_so_in_the_word_kubelets_know() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = Place::new().pull(&format!("{address}/a:v1"), None).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("RegistryUnavailable: {address}: ")), "{error}");
}
