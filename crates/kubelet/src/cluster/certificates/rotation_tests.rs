//! Certificates of minutes, and a signer that comes and goes, under paused time.

use std::sync::Mutex;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use kubelet_core::events::Happened;
use kubelet_core::node::certificate::client_names;
use rcgen::{CertificateParams, CertificateSigningRequestParams, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::events::Recorder;
use crate::testing::{TokioClock, client_of, clock};

const LIFE: Duration = Duration::from_secs(600);

/// An API server that signs what it is asked to, or answers with an error.
struct Signer {
    clock: Arc<TokioClock>,
    issuer: Issuer<'static, KeyPair>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    away: bool,
    /// Nobody approves.
    idle: bool,
    /// So many requests are denied.
    denials: usize,
    /// What is wrong with the certificates.
    wrong: Wrong,
    /// Those that were asked for under a name.
    names: Vec<String>,
    /// When each request came; refused ones too.
    asked: Vec<Wall>,
    signed: Vec<Wall>,
    last: Value,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Wrong {
    #[default]
    Nothing,
    Key,
    Name,
    Ended,
    Nonsense,
}

impl Signer {
    fn new(clock: Arc<TokioClock>) -> Arc<Signer> {
        let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
        Arc::new(Signer { clock, issuer, state: Mutex::default() })
    }

    fn client(self: &Arc<Self>) -> Client {
        let this = self.clone();
        client_of(move |request| this.clone().answer(request))
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
        let method = request.method().clone();
        let body = request.into_body().collect().await?.to_bytes();
        let now = self.clock.now().wall;
        let mut state = self.state.lock().unwrap();
        let (code, answer) = match method {
            Method::POST => {
                state.asked.push(now);
                match state.away {
                    true => (500, json!({"kind": "Status", "code": 500, "reason": "InternalError"})),
                    false => self.take(&mut state, serde_json::from_slice(&body).unwrap(), now),
                }
            }
            _ => (200, json!({"metadata": {"resourceVersion": "1"}, "items": [state.last.clone()]})),
        };
        let answer = Full::new(Bytes::from(answer.to_string()));
        Ok(Response::builder().status(code).body(answer).unwrap())
    }

    fn take(&self, state: &mut State, csr: Value, now: Wall) -> (u16, Value) {
        let name = csr["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if state.names.contains(&name) {
            return (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"}));
        }
        if !name.is_empty() {
            state.names.push(name);
        }
        if state.denials > 0 {
            state.denials -= 1;
            state.last = unsigned(csr);
            state.last["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]});
        } else {
            state.signed.push(now);
            state.last = if state.idle { unsigned(csr) } else { self.sign(&csr, now, state.wrong) };
        }
        (201, state.last.clone())
    }

    fn sign(&self, csr: &Value, now: Wall, wrong: Wrong) -> Value {
        let pem = STANDARD.decode(csr["spec"]["request"].as_str().unwrap()).unwrap();
        let mut asked =
            CertificateSigningRequestParams::from_pem(std::str::from_utf8(&pem).unwrap()).unwrap();
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(now.secs().unsigned_abs());
        asked.params.not_before = begin.into();
        asked.params.not_after = (begin + LIFE).into();
        match wrong {
            Wrong::Name => {
                asked.params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n2");
            }
            Wrong::Ended => asked.params.not_after = begin.into(),
            Wrong::Key => asked.public_key = other_key(),
            Wrong::Nothing | Wrong::Nonsense => {}
        }
        let certificate = match wrong {
            Wrong::Nonsense => "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
            _ => asked.signed_by(&self.issuer).unwrap().pem(),
        };
        let mut signed = csr.clone();
        signed["metadata"]["name"] = "csr-x".into();
        signed["status"] = json!({
            "conditions": [{"type": "Approved", "status": "True"}],
            "certificate": STANDARD.encode(certificate),
        });
        signed
    }
}

fn other_key() -> rcgen::PublicKey {
    let other = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap()).unwrap();
    CertificateSigningRequestParams::from_der(other.der()).unwrap().public_key
}

fn unsigned(mut csr: Value) -> Value {
    csr["metadata"]["name"] = "csr-x".into();
    csr
}

struct Scene {
    signer: Arc<Signer>,
    events: mpsc::Receiver<Happened>,
    metrics: Arc<Metrics>,
    _dir: tempfile::TempDir,
    _task: tokio::task::JoinHandle<()>,
}

/// What it takes to renew a client certificate.
fn deps(signer: &Arc<Signer>, dir: &Path, recorder: Recorder) -> RotationDeps {
    RotationDeps {
        purpose: Purpose::Client,
        store: Store::new(dir, "kubelet-client"),
        wanted: Wanted::Client(client_names("n1")),
        client: signer.client(),
        clock: signer.clock.clone(),
        rng: Rng::new(7),
        metrics: Arc::default(),
        events: NodeEvents::new(recorder, "n1".into()),
    }
}

fn scene() -> Scene {
    let (clock, dir) = (clock(), tempfile::tempdir().unwrap());
    let signer = Signer::new(clock.clone());
    let (sink, events) = mpsc::channel(64);
    let recorder = Recorder::new(clock.clone()).with_sink(Some(sink));
    let deps = deps(&signer, dir.path(), recorder);
    let metrics = deps.metrics.clone();
    let rotation = Rotation::new(deps);
    let task = tokio::spawn(rotation.run(CancellationToken::new()));
    Scene { signer, events, metrics, _dir: dir, _task: task }
}

/// What a scrape would find of certificates' ends.
fn ends(metrics: &Metrics) -> Vec<String> {
    let mut out = String::new();
    metrics.write(&mut out).unwrap();
    out.lines().filter(|l| !l.starts_with('#') && l.contains("_ttl_seconds")).map(str::to_owned).collect()
}

fn told(events: &mut mpsc::Receiver<Happened>) -> Vec<String> {
    std::iter::from_fn(|| events.try_recv().ok()).map(|e| e.message).collect()
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_minutes_is_renewed_between_70_and_90_percent_of_its_life() {
    let mut scene = scene();
    sleep(Duration::from_secs(2 * 3600)).await;
    let signed = scene.signer.state.lock().unwrap().signed.clone();
    assert!(signed.len() > 12, "{signed:?}");
    for pair in signed.windows(2) {
        let age = pair[1].since(pair[0]).as_secs_f64() / LIFE.as_secs_f64();
        assert!((0.69..0.91).contains(&age), "renewed at {age} of its life");
    }
    assert_eq!(told(&mut scene.events), Vec::<String>::new(), "nobody has to know");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_is_counted_down_and_survived() {
    let mut scene = scene();
    sleep(Duration::from_secs(60)).await;
    scene.signer.state.lock().unwrap().away = true;
    sleep(LIFE - Duration::from_secs(70)).await;
    let warned = told(&mut scene.events);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("client certificate expires at"), "{warned:?}");
    sleep(Duration::from_secs(120)).await;
    let warned = told(&mut scene.events);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("expired at"), "{warned:?}");
    // It asks on, and not in a hurry.
    let asked = scene.signer.state.lock().unwrap().asked.clone();
    let gaps: Vec<f64> = asked.windows(2).skip(1).map(|w| w[1].since(w[0]).as_secs_f64()).collect();
    assert!(gaps.len() > 3 && gaps.iter().all(|gap| (1.9..37.0).contains(gap)), "{gaps:?}");
    scene.signer.state.lock().unwrap().away = false;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.signer.state.lock().unwrap().signed.len(), 2);
    sleep(LIFE * 3).await;
    assert!(scene.signer.state.lock().unwrap().signed.len() >= 5, "and life goes on");
    assert_eq!(told(&mut scene.events), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn other_addresses_do_not_wait_for_a_signature_under_the_old_ones() {
    let (clock, dir) = (clock(), tempfile::tempdir().unwrap());
    let signer = Signer::new(clock.clone());
    signer.state.lock().unwrap().idle = true;
    let at = |address: &str| {
        let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        OwnNode { asked: true, object: Some(Arc::new(serde_json::from_value(node).unwrap())) }
    };
    let (own, seen) = watch::channel(at("10.0.0.1"));
    let rotation = Rotation::new(RotationDeps {
        purpose: Purpose::Serving,
        store: Store::new(dir.path(), "kubelet-server"),
        wanted: Wanted::Serving("n1".into(), seen),
        ..deps(&signer, dir.path(), Recorder::new(clock))
    });
    let _task = tokio::spawn(rotation.run(CancellationToken::new()));
    let asked = || signer.state.lock().unwrap().asked.len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(asked(), 1);
    own.send_replace(at("10.0.0.1"));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(asked(), 1, "nothing that counts has changed");
    own.send_replace(at("10.0.0.2"));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_refused_for_long_starts_again() {
    let (clock, dir) = (clock(), tempfile::tempdir().unwrap());
    let signer = Signer::new(clock.clone());
    signer.state.lock().unwrap().away = true;
    let rotation = Rotation::new(deps(&signer, dir.path(), Recorder::new(clock)));
    let task = tokio::spawn(rotation.run(CancellationToken::new()));
    sleep(GIVE_UP - Duration::from_secs(10)).await;
    assert!(!task.is_finished());
    sleep(Duration::from_secs(60)).await;
    assert!(task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_certificate_is_shown_where_there_is_one_to_renew() {
    let scene = scene();
    scene.signer.state.lock().unwrap().away = true;
    assert_eq!(ends(&scene.metrics), Vec::<String>::new());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(ends(&scene.metrics), ["kubelet_certificate_manager_client_ttl_seconds +Inf"]);
    scene.signer.state.lock().unwrap().away = false;
    sleep(Duration::from_secs(60)).await;
    let shown = ends(&scene.metrics);
    let left: f64 = shown[0].rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(shown.len() == 1 && (500.0..=600.0).contains(&left), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn a_first_request_that_was_denied_is_not_the_last() {
    let (clock, dir) = (clock(), tempfile::tempdir().unwrap());
    let signer = Signer::new(clock.clone());
    signer.state.lock().unwrap().denials = 2;
    let rotation = Rotation::new(deps(&signer, dir.path(), Recorder::new(clock)));
    let rotation = rotation.with_bootstrap(signer.client(), dir.path());
    let _task = tokio::spawn(rotation.run(CancellationToken::new()));
    sleep(Duration::from_secs(60)).await;
    let state = signer.state.lock().unwrap();
    assert_eq!((state.names.len(), state.signed.len()), (3, 1), "{:?}", state.names);
}

#[tokio::test(start_paused = true)]
async fn a_signer_that_answers_with_anothers_certificate_takes_nothing_from_the_node() {
    for wrong in [Wrong::Key, Wrong::Name, Wrong::Nonsense] {
        let scene = scene();
        sleep(Duration::from_secs(60)).await;
        let current = scene._dir.path().join("kubelet-client-current.pem");
        let good = std::fs::read(&current).unwrap();
        scene.signer.state.lock().unwrap().wrong = wrong;
        sleep(LIFE - Duration::from_secs(60)).await;
        assert_eq!(std::fs::read(&current).unwrap(), good, "{wrong:?}");
        let asked = scene.signer.state.lock().unwrap().asked.len();
        assert!((3..40).contains(&asked), "{wrong:?}: asked {asked} times");
        scene.signer.state.lock().unwrap().wrong = Wrong::Nothing;
        sleep(Duration::from_secs(60)).await;
        assert_ne!(std::fs::read(&current).unwrap(), good, "{wrong:?}: renewed when it could be");
    }
}

#[tokio::test(start_paused = true)]
async fn certificates_that_have_ended_when_they_come_are_not_asked_for_without_pause() {
    let scene = scene();
    scene.signer.state.lock().unwrap().wrong = Wrong::Ended;
    sleep(Duration::from_secs(600)).await;
    let asked = scene.signer.state.lock().unwrap().asked.len();
    assert!((10..40).contains(&asked), "asked {asked} times in ten minutes");
}
