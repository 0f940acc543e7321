//! A server with little memory, under clients that would have it keep much: it stays, answers, and is never killed for memory.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod server;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use serde_json::json;
use server::{Answer, read, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Where the child has its data, and the cgroup it goes to.
const PLACE: &str = "LONGSHORE_TEST_PLACE";
const CGROUP: &str = "LONGSHORE_TEST_CGROUP";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// What the server may use. Of it the program itself takes 60 MB in a debug build, as it starts.
const MEMORY: usize = 400 << 20;
/// What is in its store: so many objects, each so large.
const OBJECTS: usize = 120;
const OBJECT: usize = 500_000;
const JSON: &str = "Content-Type: application/json\r\n";
const PROTOBUF: &str = "Accept: application/vnd.kubernetes.protobuf\r\n";

/// A cgroup of this test, with a limit.
struct Cgroup {
    dir: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    fn new(limit: usize) -> Cgroup {
        let root = Path::new("/sys/fs/cgroup");
        let is_v2 = root.join("cgroup.controllers").exists();
        let name = format!("longshore-memory-{}", std::process::id());
        let dir = if is_v2 { root.join(name) } else { root.join("memory").join(name) };
        fs::create_dir(&dir).expect("this test makes a cgroup: run it as root");
        let cgroup = Cgroup { dir, is_v2 };
        let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(cgroup.dir.join(file), limit.to_string()).expect("the memory controller");
        cgroup
    }

    fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.dir.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.expect("a count of kills").parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was killed a moment ago may still be in it.
        let end = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A server in a process and a cgroup of its own. Fields go in this order.
struct Small {
    child: Child,
    cgroup: Cgroup,
    address: SocketAddr,
    connector: TlsConnector,
    _dir: tempfile::TempDir,
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Small {
    fn start() -> Arc<Small> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokens.csv"), "root,root,0,system:masters\n").unwrap();
        let cgroup = Cgroup::new(MEMORY);
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "serving_child", "--nocapture"])
            .env(PLACE, dir.path())
            .env(CGROUP, &cgroup.dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.find_map(|line| line.strip_prefix("serving ").map(|a| a.parse().unwrap()));
        let connector = server::connector(&dir.path().join("data/pki/ca.crt"));
        let address = address.expect("the server starts");
        Arc::new(Small { child, cgroup, address, connector, _dir: dir })
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        self.connector.connect(name, stream).await.unwrap()
    }

    async fn ask(&self, line: &str, headers: &str, body: &[u8]) -> Option<Answer> {
        let mut stream = self.connect().await;
        let bytes = [request("root", line, headers, body.len()).as_bytes(), body].concat();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.flush().await;
        read(&mut stream).await
    }

    /// The most it has had in memory so far, without what the kernel can take back.
    fn peak(&self) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or_default() << 10
    }

    /// It answers others as if nothing were the matter, and takes their small bodies.
    async fn is_well(&self, after: &str) {
        let began = Instant::now();
        let map = json!({"metadata": {"generateName": "small-"}}).to_string();
        let asking = async {
            let read = self.ask("GET /readyz", "", b"").await.map(|a| a.code);
            let written = self.ask(&format!("POST {MAPS}"), JSON, map.as_bytes()).await.map(|a| a.code);
            (read, written)
        };
        let answers = tokio::time::timeout(Duration::from_secs(20), asking).await;
        let kills = self.cgroup.kills();
        let told =
            format!("after {after}: {answers:?}, {kills} killed for memory, peak {} MB", self.peak() >> 20);
        assert!(answers == Ok((Some(200), Some(201))) && kills == 0, "{told}");
        println!("{told}, in {:?}", began.elapsed());
    }

    /// Asks and reads the beginning of the answer; the rest waits for as long as the stream lives.
    async fn read_slowly(self: Arc<Small>, line: String, headers: &'static str) -> TlsStream<TcpStream> {
        let mut stream = self.connect().await;
        stream.write_all(request("root", &line, headers, 0).as_bytes()).await.unwrap();
        let mut beginning = vec![0; 4000];
        stream.read_exact(&mut beginning).await.unwrap();
        assert!(beginning.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&beginning));
        stream
    }

    async fn slow_readers(
        self: &Arc<Small>,
        many: usize,
        line: &str,
        headers: &'static str,
    ) -> Vec<TlsStream<TcpStream>> {
        let mut readers = JoinSet::new();
        for _ in 0..many {
            readers.spawn(self.clone().read_slowly(line.to_owned(), headers));
        }
        let all = tokio::time::timeout(Duration::from_secs(60), readers.join_all()).await;
        all.unwrap_or_else(|_| panic!("{line}: not every reader is answered"))
    }
}

/// Not a test of its own: the server that is attacked.
#[test]
#[ignore = "run by the test below"]
fn serving_child() {
    let (Some(place), Some(cgroup)) = (env::var_os(PLACE), env::var_os(CGROUP)) else { return };
    fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
    let place = PathBuf::from(place);
    let settings = server::settings(&place, &place.join("tokens.csv"));
    // As the program itself runs it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .global_queue_interval(apiserver::run::ANSWERS_FIRST)
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .unwrap();
    let tell = |up: &apiserver::run::Up| {
        println!("\nserving 127.0.0.1:{}", up.address.port());
        std::io::stdout().flush().unwrap();
    };
    runtime.block_on(apiserver::run::run(settings, tell, CancellationToken::new())).unwrap();
}

#[tokio::test]
async fn readers_that_stop_reading_cost_little_whatever_they_read() {
    let small = Small::start();
    for i in 0..OBJECTS {
        let map = json!({"metadata": {"name": format!("map-{i}")}, "data": {"text": "x".repeat(OBJECT)}});
        let answer = small.ask(&format!("POST {MAPS}"), JSON, map.to_string().as_bytes()).await.unwrap();
        assert_eq!(answer.code, 201, "{}", String::from_utf8_lossy(&answer.body));
    }
    small.is_well("writing what there is to read").await;
    let list = format!("GET {MAPS}");
    let mut held = Vec::new();
    for (many, line, headers) in [
        (40, list.clone(), ""),
        (40, list.clone(), PROTOBUF),
        (40, list.clone(), "Accept: application/yaml\r\n"),
        (100, format!("{list}?watch=true"), ""),
        (100, format!("{list}?watch=true"), PROTOBUF),
    ] {
        held.push(small.slow_readers(many, &line, headers).await);
        small.is_well(&format!("{many} slow readers of {line}, {headers:?}")).await;
    }
}
