//! What the API server costs: start, memory, creates, lists, watches. Started by `cargo xtask bench api`.
//!
//! With upstream's programs at hand (`--peer-apiserver PATH --peer-etcd PATH`) both are measured in the same minutes
//! by the same client, and the ratios mean something. Without, ours are measured alone.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use testkit::api::{Client, Outcome, Peer, Server};
use tokio::task::LocalSet;

/// The goals.
const START: Duration = Duration::from_millis(300);
const IDLE_MB: f64 = 25.0;
const CREATES: f64 = 5.0;
const REACH: Duration = Duration::from_millis(20);

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    pods: usize,
    watchers: usize,
    changes: usize,
    idle: Duration,
}

/// Requests under way at once, on how many connections.
const AT_ONCE: usize = 32;
const CONNECTIONS: usize = 4;
const WATCHES_PER_CONNECTION: usize = 50;

const PODS: &str = "/api/v1/namespaces/bench/pods";

#[derive(Clone, Copy, Debug)]
struct Figures {
    start: Duration,
    /// Memory after the start, and with everything in it.
    idle: u64,
    full: u64,
    creates: Creates,
    list: Duration,
    reach_p50: Duration,
    reach_p99: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Creates {
    /// Per second.
    rate: f64,
    /// What the slowest hundredth took.
    p99: Duration,
    /// Processor time of the server's processes for each.
    each: Duration,
}

struct Wish {
    quick: bool,
    binary: PathBuf,
    peer: Option<Peer>,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime
        .map_err(Into::into)
        .and_then(|runtime| LocalSet::new().block_on(&runtime, run(Wish::parse()?)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(wish: Wish) -> Outcome<bool> {
    let effort = if wish.quick {
        Effort { pods: 1000, watchers: 100, changes: 40, idle: Duration::from_secs(6) }
    } else {
        Effort { pods: 10_000, watchers: 500, changes: 200, idle: Duration::from_secs(10) }
    };
    let dir = std::env::temp_dir().join(format!("longshore-bench-api-{}", std::process::id()));
    let measured = async {
        println!("{} Pods, {} watchers, {AT_ONCE} requests at once\n", effort.pods, effort.watchers);
        let theirs = match &wish.peer {
            Some(peer) => {
                let place = room(&dir, "upstream")?;
                Some(measure(Server::upstream(peer, &place).await?, effort).await?)
            }
            None => None,
        };
        let place = room(&dir, "ours")?;
        let ours = measure(Server::ours(&wish.binary, &place).await?, effort).await?;
        Ok(compare(&ours, theirs.as_ref()))
    };
    let result = measured.await;
    if result.is_ok() {
        fs::remove_dir_all(&dir)?;
    } else {
        eprintln!("the logs are in {}", dir.display());
    }
    result
}

fn room(dir: &Path, name: &str) -> Outcome<PathBuf> {
    let place = dir.join(name);
    fs::create_dir_all(&place)?;
    Ok(place)
}

async fn measure(server: Server, effort: Effort) -> Outcome<Figures> {
    tokio::time::sleep(effort.idle).await;
    let idle = server.memory()?;
    prepare(&server).await?;
    let creates = create_pods(&server, effort.pods).await?;
    let list = list_pods(&server, effort.pods).await?;
    let mut reach = watch_changes(&server, effort).await?;
    reach.sort_unstable();
    let full = server.memory()?;
    Ok(Figures {
        start: server.started_in,
        idle,
        full,
        creates,
        list,
        reach_p50: quantile(&reach, 0.5),
        reach_p99: quantile(&reach, 0.99),
    })
}

async fn prepare(server: &Server) -> Outcome<()> {
    let client = server.client().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}});
    client.make("/api/v1/namespaces", &namespace).await?;
    // Upstream's own comes from a controller that does not run here.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    client.make("/api/v1/namespaces/bench/serviceaccounts", &account).await
}

async fn create_pods(server: &Server, count: usize) -> Outcome<Creates> {
    // The client shares the processors with the server: what it can do before and after, it does not do meanwhile.
    let bodies =
        (0..count).map(|number| Bytes::from(pod(number).to_string())).collect::<Vec<_>>().into_iter();
    let bodies = Rc::new(RefCell::new(bodies));
    let taken = Rc::new(RefCell::new(Vec::with_capacity(count)));
    let mut tasks = vec![];
    let mut clients = vec![];
    for _ in 0..CONNECTIONS {
        clients.push(server.client().await?);
    }
    let (begun, used) = (Instant::now(), server.processor_time()?);
    for i in 0..AT_ONCE {
        let (client, bodies, taken) = (clients[i % CONNECTIONS].clone(), bodies.clone(), taken.clone());
        tasks.push(tokio::task::spawn_local(async move {
            loop {
                let Some(body) = bodies.borrow_mut().next() else { return Outcome::Ok(()) };
                let sent = Instant::now();
                let status = client.post(PODS, body).await?;
                taken.borrow_mut().push(sent.elapsed());
                if !status.is_success() {
                    return Err(format!("creating a Pod: {status}").into());
                }
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    let each = (server.processor_time()? - used) / u32::try_from(count)?;
    let mut taken = taken.take();
    taken.sort_unstable();
    Ok(Creates { rate, p99: quantile(&taken, 0.99), each })
}

/// A Pod as a Deployment makes it: about two kilobytes, four when stored.
fn pod(number: usize) -> Value {
    let env: Vec<Value> = (0..8)
        .map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("value {i} of {number}")}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("web-{number:05}"),
            "labels": {"app": "web", "pod-template-hash": "5d59d67564", "shard": (number % 16).to_string()},
            "annotations": {"example.com/checksum": "7d793037a0760186574b0282f2f435e7".repeat(4)},
        },
        "spec": {
            "containers": [{
                "name": "web", "image": "example.com/web:1.2.3", "env": env,
                "ports": [{"containerPort": 8080, "name": "http"}],
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
                "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}},
            }],
            "nodeSelector": {"example.com/none": "such"},
        },
    })
}

/// The median of a few whole lists.
async fn list_pods(server: &Server, count: usize) -> Outcome<Duration> {
    let client = server.client().await?;
    let mut taken = vec![];
    for _ in 0..5 {
        let begun = Instant::now();
        let (status, body) = client.call(Method::GET, PODS, Bytes::new()).await?;
        taken.push(begun.elapsed());
        let found = body.windows(9).filter(|w| w == b"\"web-0000" || w == b"\"web-0999").count();
        if !status.is_success() || found == 0 || body.len() < count * 1000 {
            return Err(format!("listing {count} Pods: {status}, {} bytes", body.len()).into());
        }
    }
    taken.sort_unstable();
    Ok(quantile(&taken, 0.5))
}

/// How long each change took from its request to each watcher.
async fn watch_changes(server: &Server, effort: Effort) -> Outcome<Vec<Duration>> {
    const PATH: &str = "/api/v1/namespaces/bench/configmaps";
    let client = server.client().await?;
    let object = |number: usize| {
        let data = json!({"number": number.to_string(), "text": "x".repeat(800)});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"}, "data": data})
    };
    client.make(PATH, &object(0)).await?;
    let sent: Rc<RefCell<Vec<Instant>>> = Rc::default();
    let mut watchers = vec![];
    let mut connection = client.clone();
    for i in 0..effort.watchers {
        if i % WATCHES_PER_CONNECTION == 0 {
            connection = server.client().await?;
        }
        let watcher = Watcher::open(&connection, &format!("{PATH}?watch=true"), sent.clone()).await?;
        watchers.push(tokio::task::spawn_local(watcher.follow(effort.changes)));
    }
    // The first event of each is the object as it was; let them all be through with it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for number in 1..=effort.changes {
        let body = Bytes::from(object(number).to_string());
        sent.borrow_mut().push(Instant::now());
        let (status, body) = client.call(Method::PUT, &format!("{PATH}/watched"), body).await?;
        if !status.is_success() {
            return Err(format!("updating: {status} {}", String::from_utf8_lossy(&body)).into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut reach = vec![];
    for watcher in watchers {
        reach.extend(tokio::time::timeout(Duration::from_secs(30), watcher).await???);
    }
    Ok(reach)
}

struct Watcher {
    body: hyper::body::Incoming,
    sent: Rc<RefCell<Vec<Instant>>>,
}

// === impl Watcher ===

impl Watcher {
    async fn open(client: &Client, path: &str, sent: Rc<RefCell<Vec<Instant>>>) -> Outcome<Watcher> {
        let answer = client.send(Method::GET, path, Bytes::new()).await?;
        if !answer.status().is_success() {
            return Err(format!("watching: {}", answer.status()).into());
        }
        Ok(Watcher { body: answer.into_body(), sent })
    }

    /// Reads until every change came, each once and in order.
    async fn follow(mut self, changes: usize) -> Outcome<Vec<Duration>> {
        let (mut reach, mut seen, mut line) = (Vec::with_capacity(changes), 0, Vec::new());
        while seen < changes {
            let frame = self.body.frame().await.ok_or("a watch ended early")??;
            let now = Instant::now();
            for part in frame.data_ref().ok_or("a watch ended early")?.split_inclusive(|b| *b == b'\n') {
                line.extend_from_slice(part);
                if !line.ends_with(b"\n") {
                    continue;
                }
                let number = number_in(&line).unwrap_or_default();
                line.clear();
                if number == 0 {
                    continue;
                }
                if number != seen + 1 {
                    return Err(format!("change {number} followed change {seen}").into());
                }
                seen = number;
                reach.push(now - self.sent.borrow()[number - 1]);
            }
        }
        Ok(reach)
    }
}

/// The number in the data of a told ConfigMap. Five hundred watchers that read JSON would measure themselves.
fn number_in(event: &[u8]) -> Option<usize> {
    const BEFORE: &[u8] = b"\"number\":\"";
    let at = event.windows(BEFORE.len()).position(|w| w == BEFORE)? + BEFORE.len();
    let digits = event[at..].iter().take_while(|b| b.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

// === impl Wish ===

impl Wish {
    fn parse() -> Outcome<Wish> {
        let binary = std::env::var_os("LONGSHORE_BINARY").ok_or("LONGSHORE_BINARY is not set")?;
        let mut wish = Wish { quick: false, binary: binary.into(), peer: None };
        let (mut apiserver, mut etcd) = (None, None);
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--quick") => wish.quick = true,
                Some("--peer-apiserver") => apiserver = args.next(),
                Some("--peer-etcd") => etcd = args.next(),
                _ => return Err(format!("unknown argument {}", arg.display()).into()),
            }
        }
        wish.peer = match (apiserver, etcd) {
            (Some(apiserver), Some(etcd)) => Some(Peer { apiserver: apiserver.into(), etcd: etcd.into() }),
            (None, None) => None,
            _ => return Err("--peer-apiserver and --peer-etcd go together".into()),
        };
        Ok(wish)
    }
}

/// How one figure is said.
type Telling<'a> = dyn Fn(&Figures) -> String + 'a;

/// Prints both, and whether the goals were met. Without a peer nothing is said about ratios.
fn compare(ours: &Figures, theirs: Option<&Figures>) -> bool {
    let mb = |f: &Figures, what: fn(&Figures) -> u64| format!("{:.1} MB", what(f) as f64 / 1e6);
    let ms = |f: &Figures, what: fn(&Figures) -> Duration| millis(what(f));
    let rows: [(&str, &Telling<'_>); 9] = [
        ("start to ready", &|f| ms(f, |f| f.start)),
        ("memory, idle", &|f| mb(f, |f| f.idle)),
        ("creates", &|f| format!("{:.0}/s", f.creates.rate)),
        ("create, p99", &|f| ms(f, |f| f.creates.p99)),
        ("create, processor time", &|f| ms(f, |f| f.creates.each)),
        ("list of all Pods", &|f| ms(f, |f| f.list)),
        ("change to watcher, p50", &|f| ms(f, |f| f.reach_p50)),
        ("change to watcher, p99", &|f| ms(f, |f| f.reach_p99)),
        ("memory, full", &|f| mb(f, |f| f.full)),
    ];
    println!("{:<24}{:>14}{:>14}", "", "longshore", "upstream");
    for (what, tell) in rows {
        println!("{what:<24}{:>14}{:>14}", tell(ours), theirs.map_or("-".to_owned(), tell));
    }
    let mut goals = vec![
        (format!("ready in {} (goal: {})", millis(ours.start), millis(START)), ours.start <= START),
        (
            format!("{:.1} MB idle (goal: {IDLE_MB} MB)", ours.idle as f64 / 1e6),
            ours.idle as f64 <= IDLE_MB * 1e6,
        ),
        (
            format!("{} to all watchers, p99 (goal: {})", millis(ours.reach_p99), millis(REACH)),
            ours.reach_p99 <= REACH,
        ),
    ];
    match theirs.map(|theirs| ours.creates.rate / theirs.creates.rate) {
        Some(ratio) => {
            goals.push((format!("{ratio:.1} times the creates (goal: {CREATES})"), ratio >= CREATES));
        }
        None => println!("\nnot compared: give --peer-apiserver and --peer-etcd"),
    }
    println!();
    for (what, reached) in &goals {
        println!("{} {what}", if *reached { "reached:" } else { "MISSED: " });
    }
    goals.iter().all(|(_, reached)| *reached)
}

fn millis(d: Duration) -> String {
    format!("{:.1} ms", d.as_secs_f64() * 1e3)
}

fn quantile(sorted: &[Duration], q: f64) -> Duration {
    let index = ((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}
