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
use tokio::net::{TcpSocket, TcpStream};
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
const BODY: usize = 3_000_000;
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
    fn start(memory: usize) -> Arc<Small> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokens.csv"), "root,root,0,system:masters\nmallory,mallory,1\n").unwrap();
        let cgroup = Cgroup::new(memory);
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
        self.greet(TcpStream::connect(self.address).await.unwrap()).await
    }

    /// A connection of which the kernel keeps little: what is not taken waits with the client.
    async fn connect_narrowly(&self) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(64 << 10).unwrap();
        self.greet(socket.connect(self.address).await.unwrap()).await
    }

    async fn greet(&self, stream: TcpStream) -> TlsStream<TcpStream> {
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
    let small = Small::start(MEMORY);
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

/// The code of an answer, from its beginning.
async fn code(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<u16> {
    let mut beginning = [0; 12];
    let reading = stream.read_exact(&mut beginning);
    tokio::time::timeout(Duration::from_secs(300), reading).await.expect("an answer").ok()?;
    std::str::from_utf8(&beginning[9..]).unwrap().parse().ok()
}

/// What one of many clients of mallory's saw: a code, or nothing as he never ended; and the connection, which stays.
type Seen = (Option<u16>, TlsStream<TcpStream>);

impl Small {
    /// Lets him do what he likes with the ConfigMaps of one namespace.
    async fn admit_mallory(&self) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]});
        let role = json!({"metadata": {"name": "maps"}, "rules": [rule]});
        let binding = json!({
            "metadata": {"name": "maps"}, "subjects": [{"kind": "User", "name": "mallory"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maps"},
        });
        for (plural, object) in [("roles", role), ("rolebindings", binding)] {
            let made = self.ask(&format!("POST {rbac}/{plural}"), JSON, object.to_string().as_bytes()).await;
            assert_eq!(made.map(|answer| answer.code), Some(201));
        }
    }

    async fn send(&self, line: &str, headers: &str, body: &[u8]) -> Seen {
        let mut stream = self.connect().await;
        let bytes = [request("mallory", line, headers, body.len()).as_bytes(), body].concat();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.flush().await;
        (code(&mut stream).await, stream)
    }

    /// All of a body but its last byte, or as much of it as the server takes before it answers.
    async fn never_end(&self) -> Seen {
        let stream = self.connect_narrowly().await;
        let (mut answers, mut sending) = tokio::io::split(stream);
        let sent = async {
            let head = request("mallory", &format!("POST {MAPS}"), JSON, BODY);
            let _ = sending.write_all(head.as_bytes()).await;
            if sending.write_all(&vec![b' '; BODY - 1]).await.is_ok() && sending.flush().await.is_ok() {
                return;
            }
            std::future::pending().await
        };
        let seen = tokio::select! {
            seen = code(&mut answers) => seen,
            () = sent => None,
        };
        (seen, answers.unsplit(sending))
    }

    /// The same by many at once.
    async fn crowd<F>(self: &Arc<Small>, many: usize, one: impl Fn(Arc<Small>, usize) -> F) -> Vec<Seen>
    where
        F: Future<Output = Seen> + Send + 'static,
    {
        let mut crowd = JoinSet::new();
        (0..many).for_each(|i| drop(crowd.spawn(one(self.clone(), i))));
        tokio::time::timeout(Duration::from_secs(600), crowd.join_all()).await.expect("all are answered")
    }
}

/// How many saw this.
fn count(seen: &[Seen], code: Option<u16>) -> usize {
    seen.iter().filter(|(found, _)| *found == code).count()
}

#[tokio::test]
async fn bodies_that_never_end_shut_nobody_out() {
    // A body of each would be twice as much.
    let small = Small::start(150 << 20);
    small.admit_mallory().await;
    let bodies = small.crowd(100, async |small, _| small.never_end().await).await;
    small.is_well("100 bodies that do not end").await;
    let (kept, refused) = (count(&bodies, None), count(&bodies, Some(429)));
    assert!(kept > 0 && refused >= 80 && kept + refused == 100, "{kept} kept, {refused} refused");
}

#[tokio::test]
async fn applies_of_many_keys_at_once_are_done_a_few_at_a_time() {
    let small = Small::start(MEMORY);
    small.admit_mallory().await;
    let data: serde_json::Map<_, _> = (0..20_000).map(|i| (format!("key-{i}"), "v".into())).collect();
    let apply = "Content-Type: application/apply-patch+yaml\r\n";
    for manager in ["one", "two"] {
        let data = data.clone();
        let applying = small.crowd(30, |small, i| {
            let metadata = json!({"name": format!("map-{i}")});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            let line = format!("PATCH {MAPS}/map-{i}?fieldManager={manager}&force=true");
            async move { small.send(&line, apply, map.to_string().as_bytes()).await }
        });
        let asking = async {
            for _ in 0..10 {
                small.is_well("asking while 30 apply").await;
            }
        };
        let (seen, ()) = tokio::join!(applying, asking);
        let done = count(&seen, Some(201)) + count(&seen, Some(200));
        let codes: Vec<_> = seen.iter().map(|(code, _)| *code).collect();
        assert!(done > 0 && done + count(&seen, Some(429)) == 30, "{codes:?}");
        small.is_well(&format!("30 applies by {manager}, {done} of them done")).await;
    }
}

#[tokio::test]
async fn one_user_who_does_all_of_it_at_once_takes_nothing_from_the_administrator() {
    let small = Small::start(MEMORY);
    small.admit_mallory().await;
    for i in 0..40 {
        let map = json!({"metadata": {"name": format!("map-{i}")}, "data": {"text": "x".repeat(OBJECT)}});
        let (made, _) = small.send(&format!("POST {MAPS}"), JSON, map.to_string().as_bytes()).await;
        assert_eq!(made, Some(201));
    }
    let mut held = Vec::new();
    let yaml = "Accept: application/yaml\r\n";
    for (line, headers) in [
        (format!("GET {MAPS}"), ""),
        (format!("GET {MAPS}"), PROTOBUF),
        (format!("GET {MAPS}"), yaml),
        (format!("GET {MAPS}?watch=true"), ""),
        (format!("GET {MAPS}?watch=true"), PROTOBUF),
        (format!("GET {MAPS}/map-0"), yaml),
    ] {
        let ask = |small: Arc<Small>, _| {
            let line = line.clone();
            async move { small.send(&line, headers, b"").await }
        };
        held.push(small.crowd(30, ask).await);
        small.is_well(&format!("30 who do not read {line}, {headers:?}")).await;
    }
    let map = json!({"metadata": {"generateName": "his-"}, "data": {"text": "x".repeat(OBJECT)}}).to_string();
    let bodies = small.crowd(100, async |small, _| small.never_end().await);
    let writes = small.crowd(40, |small, _| {
        let map = map.clone();
        async move { small.send(&format!("POST {MAPS}"), JSON, map.as_bytes()).await }
    });
    let (bodies, writes) = tokio::join!(bodies, writes);
    small.is_well("bodies that do not end and large ones that do").await;
    let made = small.ask(&format!("POST {MAPS}"), JSON, map.as_bytes()).await;
    assert_eq!(made.map(|answer| answer.code), Some(201), "a large body of the administrator's");
    drop((held, bodies, writes));
}
