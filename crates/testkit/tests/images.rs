//! The image puller on a runtime in memory, under paused time.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::time::{Clock, Mono, Now, Wall};
use cri::v1::{ImageSpec, PodSandboxConfig};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet::events::Recorder;
use kubelet::images::{
    Credentials, ImageError, ImagePuller, ImageRef, NodeFiles, Provider, PullSecret, Reason, Records,
    Settings, Want, load_providers,
};
use kubelet::metrics::Metrics;
use kubelet::ports::{Account, Accounts, Runtime};
use kubelet_core::images::{BadDockerConfig, Login};
use testkit::fake_runtime::{FakeRuntime, Faults, Op, Pull};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

const S: fn(u64) -> Duration = Duration::from_secs;

struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Now {
        let mono = self.0.elapsed();
        Now { mono: Mono(mono), wall: Wall(1_700_000_000_000_000_000 + mono.as_nanos() as i64) }
    }
}

struct Bench {
    fake: FakeRuntime,
    recorder: Recorder,
    puller: ImagePuller,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Extra {
    files: Option<NodeFiles>,
    records: Option<Records>,
    providers: Vec<Provider>,
    accounts: Option<Arc<dyn Accounts>>,
}

fn bench(settings: Settings, extra: Extra) -> Bench {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock(Instant::now()));
    let fake = FakeRuntime::new(1, clock.clone());
    let recorder = Recorder::new(clock.clone());
    let metrics = Arc::new(Metrics::default());
    let credentials =
        Credentials::new(clock.clone(), extra.files, extra.providers).with_accounts(extra.accounts);
    let puller = ImagePuller::new(
        settings,
        Arc::new(fake.clone()),
        recorder.clone(),
        clock,
        credentials,
        extra.records,
        Some(metrics.clone()),
    );
    Bench { fake, recorder, puller, metrics }
}

fn parallel() -> Settings {
    Settings { serialize: false, ..Settings::default() }
}

fn pod(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    let containers = vec![Container { name: "c".into(), ..Container::default() }];
    pod.spec = Some(PodSpec { containers, ..PodSpec::default() });
    pod
}

impl Bench {
    async fn ensure(&self, uid: &str, image: &str, policy: &str) -> Result<ImageRef, ImageError> {
        self.ensure_with(uid, image, policy, &[]).await
    }

    async fn ensure_with(
        &self,
        uid: &str,
        image: &str,
        policy: &str,
        secrets: &[PullSecret],
    ) -> Result<ImageRef, ImageError> {
        let (pod, sandbox) = (pod(uid), PodSandboxConfig::default());
        let want =
            Want { pod: &pod, container: Some("c"), image, policy: Some(policy), sandbox: &sandbox, secrets };
        self.puller.ensure(want).await
    }

    fn events(&self, uid: &str) -> Vec<(String, String)> {
        self.recorder.of(uid).into_iter().map(|e| (e.reason, e.message)).collect()
    }

    fn pulls(&self) -> usize {
        self.fake.journal().entries().iter().filter(|e| e.op == Op::Pull).count()
    }
}

fn pairs(rows: &[(&str, &str)]) -> Vec<(String, String)> {
    rows.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect()
}

#[tokio::test(start_paused = true)]
async fn policies_and_what_they_tell() {
    let bench = bench(Settings::default(), Extra::default());
    bench.fake.script_pull("slow:1", Pull::takes(Duration::from_millis(1234)));
    bench.fake.add_image("here:1");

    let image = bench.ensure("a", "here:1", "IfNotPresent").await.unwrap();
    assert!(image.reference.starts_with("sha256:"));
    let here = r#"Container image "here:1" already present on machine and can be accessed by the pod"#;
    assert_eq!(bench.events("a"), pairs(&[("Pulled", here)]));

    bench.ensure("b", "slow:1", "IfNotPresent").await.unwrap();
    let pulled = r#"Successfully pulled image "slow:1" in 1.234s (1.234s including waiting). Image size: 5242880 bytes."#;
    assert_eq!(bench.events("b"), pairs(&[("Pulling", r#"Pulling image "slow:1""#), ("Pulled", pulled)]));
    assert_eq!(bench.metrics.image_pull_duration_seconds.count(["0-10MB"]), 1);

    let error = bench.ensure("c", "gone:1", "Never").await.unwrap_err();
    let never = r#"Container image "gone:1" is not present with pull policy of Never"#;
    assert_eq!((error.reason, error.message.as_str()), (Reason::ErrImageNeverPull, never));
    let told = [("ErrImageNeverPull", never), ("Failed", "Error: ErrImageNeverPull")];
    assert_eq!(bench.events("c"), pairs(&told));

    bench.ensure("d", "here:1", "Always").await.unwrap();
    assert_eq!(bench.events("d")[0].0, "Pulling");
    bench.ensure("e", "untagged", "Always").await.unwrap();
    assert!(
        bench
            .fake
            .image_status(ImageSpec { image: "untagged:latest".into(), ..Default::default() })
            .await
            .unwrap()
            .is_some()
    );

    let error = bench.ensure("f", "Bad Name", "Always").await.unwrap_err();
    assert_eq!(error.reason, Reason::InvalidImageName);
    assert!(
        error.message.starts_with(r#"Failed to apply default image tag "Bad Name": couldn't parse"#),
        "{error}"
    );
    assert_eq!(bench.events("f")[0].0, "InspectFailed");

    bench.fake.set_faults(Faults { error: 1.0, ..Faults::default() });
    let error = bench.ensure("g", "here:1", "IfNotPresent").await.unwrap_err();
    assert_eq!(error.reason, Reason::ImageInspectError);
}

#[tokio::test(start_paused = true)]
async fn back_off_repeats_the_error_and_doubles() {
    let bench = bench(parallel(), Extra::default());
    bench.fake.script_pull("bad:1", Pull::fails(Code::NotFound, "no such manifest"));
    let begun = Instant::now();
    let mut tried = Vec::new();
    for _ in 0..1300 {
        let error = bench.ensure("a", "bad:1", "IfNotPresent").await.unwrap_err();
        match error.reason {
            Reason::ErrImagePull => {
                assert_eq!(error.message, "rpc error: code = NotFound desc = no such manifest");
                tried.push(begun.elapsed().as_secs());
            }
            Reason::ImagePullBackOff => assert_eq!(
                error.message,
                r#"Back-off pulling image "bad:1": ErrImagePull: rpc error: code = NotFound desc = no such manifest"#
            ),
            other => panic!("{other:?}"),
        }
        assert!(error.retry_at.is_some());
        sleep(S(1)).await;
    }
    assert_eq!(tried, [0, 10, 30, 70, 150, 310, 610, 910, 1210]);
    let told = [
        ("Pulling", r#"Pulling image "bad:1""#),
        ("Failed", r#"Failed to pull image "bad:1": rpc error: code = NotFound desc = no such manifest"#),
        ("Failed", "Error: ErrImagePull"),
        ("BackOff", r#"Back-off pulling image "bad:1""#),
        ("Failed", "Error: ImagePullBackOff"),
    ];
    assert_eq!(bench.events("a"), pairs(&told));
    // Another Pod is not held up by the first one's failures, and a repaired image is pulled.
    assert_eq!(bench.ensure("b", "bad:1", "IfNotPresent").await.unwrap_err().reason, Reason::ErrImagePull);
    bench.fake.script_pull("bad:1", Pull::default());
    sleep(S(300)).await;
    assert!(bench.ensure("a", "bad:1", "IfNotPresent").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn special_reasons_come_from_the_runtime() {
    let bench = bench(parallel(), Extra::default());
    let rows = [
        (
            "RegistryUnavailable: down",
            Reason::RegistryUnavailable,
            "image pull failed for x:1 because the registry is unavailable: down",
        ),
        (
            "SignatureValidationFailed",
            Reason::SignatureValidationFailed,
            "image pull failed for x:1 because the signature validation failed",
        ),
        ("anything else", Reason::ErrImagePull, "anything else"),
    ];
    for (n, (text, reason, message)) in rows.into_iter().enumerate() {
        bench.fake.script_pull("x:1", Pull::fails(Code::Unknown, text));
        let error = bench.ensure(&n.to_string(), "x:1", "Always").await.unwrap_err();
        assert_eq!((error.reason, error.message.as_str()), (reason, message));
    }
}

#[tokio::test(start_paused = true)]
async fn pulls_queue_or_run_abreast_as_configured() {
    let rows =
        [(Settings::default(), 30), (parallel(), 10), (Settings { max_parallel: Some(2), ..parallel() }, 20)];
    for (settings, seconds) in rows {
        let bench = bench(settings.clone(), Extra::default());
        let images = ["a:1", "b:1", "c:1"];
        for image in images {
            bench.fake.script_pull(image, Pull::takes(S(10)));
        }
        let begun = Instant::now();
        let (a, b, c) = tokio::join!(
            bench.ensure("a", images[0], "Always"),
            bench.ensure("b", images[1], "Always"),
            bench.ensure("c", images[2], "Always"),
        );
        assert!(a.is_ok() && b.is_ok() && c.is_ok());
        assert_eq!(begun.elapsed(), S(seconds), "{settings:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_registry_is_not_asked_more_often_than_allowed() {
    let bench = bench(Settings { qps: 1.0, burst: 2, ..parallel() }, Extra::default());
    let mut refused = 0;
    for n in 0..5 {
        if let Err(error) = bench.ensure("a", &format!("i{n}:1"), "IfNotPresent").await {
            assert_eq!((error.reason, error.message.as_str()), (Reason::ErrImagePull, "pull QPS exceeded"));
            refused += 1;
        }
    }
    assert_eq!((refused, bench.pulls()), (3, 2));
    sleep(S(10)).await;
    assert!(bench.ensure("a", "i4:1", "IfNotPresent").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn equal_pulls_are_one_and_survive_whoever_leaves() {
    let bench = bench(parallel(), Extra::default());
    bench.fake.script_pull("x:1", Pull::takes(S(10)));
    let begun = Instant::now();
    // The one who started it gives up; the two others still get their image from the same pull.
    let (first, second, third) = tokio::join!(
        timeout(S(3), bench.ensure("a", "x:1", "Always")),
        bench.ensure("b", "x:1", "Always"),
        async {
            sleep(S(5)).await;
            bench.ensure("c", "x:1", "Always").await
        }
    );
    assert!(first.is_err() && second.is_ok() && third.is_ok());
    assert_eq!((begun.elapsed(), bench.pulls()), (S(10), 1));
    let text = r#"Successfully pulled image "x:1" in 10s (5s including waiting). Image size: 5242880 bytes."#;
    assert_eq!(bench.events("c")[1].1, text);
    // When everybody has left, so has the pull, and the next one starts anew.
    assert!(timeout(S(3), bench.ensure("a", "x:1", "Always")).await.is_err());
    sleep(S(60)).await;
    assert_eq!(bench.pulls(), 1);
    assert!(bench.ensure("a", "x:1", "Always").await.is_ok());
    assert_eq!(bench.pulls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_login_file_that_comes_late_counts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    let files = NodeFiles::usual(dir.path(), &nowhere, Some(&nowhere));
    let bench = bench(parallel(), Extra { files: Some(files), ..Extra::default() });
    bench.fake.script_pull("r.io/x:1", Pull::needs("node", "x"));
    assert_eq!(bench.ensure("a", "r.io/x:1", "Always").await.unwrap_err().reason, Reason::ErrImagePull);
    let config = r#"{"auths": {"r.io": {"username": "node", "password": "x"}}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    sleep(S(11)).await;
    assert!(bench.ensure("a", "r.io/x:1", "Always").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn logins_are_tried_in_turn_and_access_is_proved() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"auths": {"r.io": {"username": "node", "password": "x"}}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let nowhere = dir.path().join("nowhere");
    let files = NodeFiles::usual(dir.path(), &nowhere, Some(&nowhere));
    let records = Some(Records::open(dir.path()).unwrap());
    let extra = Extra { files: Some(files), records, ..Extra::default() };
    let bench = bench(parallel(), extra);
    let secret = |user: &str, password: &str| PullSecret {
        uid: user.into(),
        namespace: "ns".into(),
        name: user.into(),
        logins: Ok([(
            "r.io".to_owned(),
            Login { username: user.into(), password: password.into(), email: String::new() },
        )]
        .into()),
    };
    let (mine, wrong) = (secret("me", "pw"), secret("me", "typo"));

    bench.fake.script_pull("r.io/node:1", Pull::needs("node", "x"));
    bench.ensure_with("a", "r.io/node:1", "IfNotPresent", std::slice::from_ref(&wrong)).await.unwrap();
    assert!(bench.ensure("b", "r.io/node:1", "IfNotPresent").await.is_ok());
    assert_eq!(bench.pulls(), 1, "the node's own login proves it for everybody");

    bench.fake.script_pull("r.io/team:1", Pull::needs("me", "pw"));
    bench.ensure_with("a", "r.io/team:1", "IfNotPresent", std::slice::from_ref(&mine)).await.unwrap();
    bench.ensure_with("b", "r.io/team:1", "IfNotPresent", std::slice::from_ref(&mine)).await.unwrap();
    assert_eq!(bench.pulls(), 2, "the same secret need not pull again");
    let error = bench.ensure("c", "r.io/team:1", "IfNotPresent").await.unwrap_err();
    assert!(error.message.contains("pull access denied"), "{error}");
    let error = bench.ensure("d", "r.io/team:1", "Never").await.unwrap_err();
    assert_eq!(error.reason, Reason::ErrImageNeverPull, "present, but not for this Pod");
}

#[tokio::test(start_paused = true)]
async fn a_broken_secret_is_told_where_a_login_is_needed() {
    let bench = bench(parallel(), Extra::default());
    bench.fake.add_image("r.io/here:1");
    let broken = PullSecret {
        uid: "u".into(),
        namespace: "ns".into(),
        name: "typo".into(),
        logins: Err(BadDockerConfig),
    };
    let secrets = [broken];
    assert!(bench.ensure_with("a", "r.io/here:1", "IfNotPresent", &secrets).await.is_ok());
    let error = bench.ensure_with("a", "r.io/there:1", "IfNotPresent", &secrets).await.unwrap_err();
    let text = "image pull secret ns/typo: not a valid docker configuration";
    assert_eq!((error.reason, error.message.as_str()), (Reason::ErrImagePull, text));
    assert_eq!(bench.pulls(), 0);
}

/// One service account for all, with a token for each Pod.
struct OneAccount;

#[async_trait]
impl Accounts for OneAccount {
    async fn account(&self, pod: &Pod) -> Result<Account, String> {
        let name = pod.spec.as_ref().unwrap().service_account_name.clone().unwrap();
        Ok(Account { uid: format!("u-{name}"), ..Account::default() })
    }

    async fn token(&self, pod: &Pod, uid: &str, audience: &str) -> Result<String, String> {
        Ok(format!("{uid}-{audience}-{}", pod.metadata.uid.as_deref().unwrap()))
    }
}

/// A provider that lets in whoever has a token of the account `robot`.
fn token_provider(dir: &std::path::Path) -> Provider {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join("p");
    let script = r#"#!/bin/sh
case "$(cat)" in *u-robot-aud-*) password=pw;; *) password=none;; esac
cat <<END
{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry",
 "auth": {"r.io": {"username": "robot", "password": "$password"}}}
END
"#;
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: p\n  \
                  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: [r.io]\n  defaultCacheDuration: 1m\n  \
                  tokenAttributes: {serviceAccountTokenAudience: aud, requireServiceAccount: true, cacheType: ServiceAccount}\n";
    std::fs::write(dir.join("config.yaml"), config).unwrap();
    load_providers(&dir.join("config.yaml"), dir, true).unwrap().remove(0)
}

/// Time runs: a provider is a program, and nobody can make it faster.
#[tokio::test]
async fn access_is_proved_for_the_service_account_that_pulled() {
    let dir = tempfile::tempdir().unwrap();
    let extra = Extra {
        records: Some(Records::open(dir.path()).unwrap()),
        providers: vec![token_provider(dir.path())],
        accounts: Some(Arc::new(OneAccount)),
        ..Extra::default()
    };
    let bench = bench(parallel(), extra);
    bench.fake.script_pull("r.io/team:1", Pull::needs("robot", "pw"));
    let ensure = async |uid: &str, account: &str| {
        let (mut pod, sandbox) = (pod(uid), PodSandboxConfig::default());
        pod.metadata.namespace = Some("ns".into());
        pod.spec.as_mut().unwrap().service_account_name = Some(account.into());
        let policy = Some("IfNotPresent");
        let want = Want {
            pod: &pod,
            container: Some("c"),
            image: "r.io/team:1",
            policy,
            sandbox: &sandbox,
            secrets: &[],
        };
        bench.puller.ensure(want).await
    };
    ensure("a", "robot").await.unwrap();
    ensure("b", "robot").await.unwrap();
    assert_eq!(bench.pulls(), 1, "another Pod of the account need not pull again");
    let error = ensure("c", "stranger").await.unwrap_err();
    assert!(error.message.contains("pull access denied"), "{error}");
    let records = std::fs::read_dir(dir.path().join("image_manager/pulled")).unwrap();
    let records: Vec<String> = records.map(|e| std::fs::read_to_string(e.unwrap().path()).unwrap()).collect();
    let proved = r#""kubernetesServiceAccounts":[{"uid":"u-robot","namespace":"ns","name":"robot"}]"#;
    assert!(records.len() == 1 && records[0].contains(proved), "{records:?}");
}

#[tokio::test(start_paused = true)]
async fn an_image_volume_tells_its_story_on_the_pod() {
    let bench = bench(parallel(), Extra::default());
    bench.fake.script_pull("data:1", Pull::fails(Code::Unknown, "no"));
    let (pod, sandbox) = (pod("a"), PodSandboxConfig::default());
    let want =
        Want { pod: &pod, container: None, image: "data:1", policy: None, sandbox: &sandbox, secrets: &[] };
    assert_eq!(bench.puller.ensure(want).await.unwrap_err().reason, Reason::ErrImagePull);
    let events = bench.recorder.of("a");
    assert!(events.iter().all(|e| e.field_path.is_empty() && e.message != "Error: ErrImagePull"));
}

#[tokio::test(start_paused = true)]
async fn calls_to_the_runtime_are_measured() {
    let bench = bench(parallel(), Extra::default());
    let metered = kubelet::runtime::Metered::new(bench.fake.clone(), bench.metrics.clone());
    bench.fake.script_pull("bad:1", Pull::fails(Code::NotFound, "no"));
    let spec = |image: &str| ImageSpec { image: image.into(), ..Default::default() };
    metered.pull_image(spec("good:1"), None, None).await.unwrap();
    metered.pull_image(spec("bad:1"), None, None).await.unwrap_err();
    metered.run_pod_sandbox(PodSandboxConfig::default(), "kata").await.unwrap();
    assert_eq!(bench.metrics.runtime_operations_total.get(["pull_image"]), 2.0);
    assert_eq!(bench.metrics.runtime_operations_errors_total.get(["pull_image"]), 1.0);
    assert_eq!(bench.metrics.runtime_operations_duration_seconds.count(["run_podsandbox"]), 1);
    assert_eq!(bench.metrics.run_podsandbox_duration_seconds.count(["kata"]), 1);
}
