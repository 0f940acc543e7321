//! Providers as shell scripts in a temporary directory.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::*;
use crate::ports::Account;

const T0: Mono = Mono(Duration::ZERO);
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A provider `p` that runs this script.
    fn new(script: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(bench.bin()).unwrap();
        let program = bench.bin().join("p");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
        bench
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    fn provider(&self, more: &str) -> Provider {
        let config = self.dir.path().join("config.yaml");
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: p\n  \
             apiVersion: {V1}\n  matchImages: ['*.io', 'r.io/team']\n  defaultCacheDuration: 1m\n{more}"
        );
        std::fs::write(&config, text).unwrap();
        load_providers(&config, &self.bin(), true).unwrap().remove(0)
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("runs")).unwrap_or_default().lines().count()
    }
}

fn nobody() -> Asker<'static> {
    static POD: std::sync::LazyLock<Pod> = std::sync::LazyLock::new(Pod::default);
    Asker { pod: &POD, accounts: None }
}

/// Service accounts by name; a token is new for every Pod.
struct Accounts(BTreeMap<&'static str, Account>);

#[async_trait]
impl crate::ports::Accounts for Accounts {
    async fn account(&self, pod: &Pod) -> Result<Account, String> {
        let name = pod.spec.as_ref().unwrap().service_account_name.as_deref().unwrap();
        self.0.get(name).cloned().ok_or_else(|| format!("serviceaccounts {name:?} not found"))
    }

    async fn token(&self, pod: &Pod, account_uid: &str, audience: &str) -> Result<String, String> {
        Ok(format!("token-{account_uid}-{audience}-{}", pod.metadata.name.as_deref().unwrap()))
    }
}

fn accounts() -> Accounts {
    let account = |uid: &str, annotations: &[(&str, &str)]| Account {
        uid: uid.into(),
        annotations: annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
    };
    Accounts(BTreeMap::from([
        ("plain", account("u-plain", &[("x.io/hint", "h")])),
        ("robot", account("u-robot", &[("x.io/role", "puller"), ("x.io/hint", "h"), ("other", "o")])),
        ("mate", account("u-mate", &[("x.io/role", "puller")])),
    ]))
}

fn pod(name: &str, account: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    let account = (!account.is_empty()).then(|| account.to_owned());
    pod.spec = Some(PodSpec { service_account_name: account, ..PodSpec::default() });
    pod
}

/// The `tokenAttributes` of the tests.
fn attributes(require: bool, required: &str, cache: &str) -> String {
    format!(
        "  tokenAttributes:\n    serviceAccountTokenAudience: aud\n    requireServiceAccount: {require}\n    \
         requiredServiceAccountAnnotationKeys: [{required}]\n    \
         optionalServiceAccountAnnotationKeys: [x.io/hint]\n    cacheType: {cache}\n"
    )
}

fn answer(rest: &str) -> String {
    format!(
        r#"echo run >> "$(dirname "$0")/../runs"; cat > "$(dirname "$0")/../request"
cat <<END
{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}", {rest}}}
END"#
    )
}

#[tokio::test]
async fn the_program_gets_the_request_and_its_answer_is_cached_as_it_says() {
    // key type, its duration, asked again for: the same image, another image of the registry, another registry
    let rows = [
        ("Image", "", [1, 2, 3]),
        ("Registry", "", [1, 1, 2]),
        ("Global", "", [1, 1, 1]),
        ("Global", r#""cacheDuration": "0s","#, [2, 3, 4]),
    ];
    for (key, duration, runs) in rows {
        let auth = r#""auth": {"r.io": {"username": "me", "password": "pw"}}"#;
        let bench = Bench::new(&answer(&format!(r#""cacheKeyType": "{key}", {duration} {auth}"#)));
        let provider = bench.provider("");
        let (logins, _) = provider.logins("r.io/a", nobody(), T0).await.unwrap();
        assert_eq!(logins["r.io"].username, "me");
        for (repository, expected) in ["r.io/a", "r.io/b", "s.io/a"].into_iter().zip(runs) {
            provider.logins(repository, nobody(), T0).await.unwrap();
            assert_eq!(bench.runs(), expected, "{key} {duration} {repository}");
        }
        let request = std::fs::read_to_string(bench.dir.path().join("request")).unwrap();
        assert!(request.starts_with(r#"{"kind":"CredentialProviderRequest","#), "{request}");
        assert!(request.contains(V1) && request.contains(r#""image":"#), "{request}");
        assert!(provider.logins("example.com/a", nobody(), T0).await.unwrap().0.is_empty());
    }
}

#[tokio::test]
async fn the_cache_expires_and_arguments_and_environment_arrive() {
    let script =
        answer(r#""cacheKeyType": "Image", "auth": {"r.io": {"username": "$1-$2", "password": "$TOKEN"}}"#);
    let bench = Bench::new(&script);
    let provider = bench.provider("  args: [one, two]\n  env: [{name: TOKEN, value: secret}]\n");
    let login = provider.logins("r.io/a", nobody(), T0).await.unwrap().0["r.io"].clone();
    assert_eq!((login.username.as_str(), login.password.as_str()), ("one-two", "secret"));
    provider.logins("r.io/a", nobody(), Mono(Duration::from_secs(60))).await.unwrap();
    assert_eq!(bench.runs(), 1);
    provider.logins("r.io/a", nobody(), Mono(Duration::from_secs(61))).await.unwrap();
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn many_askers_one_run() {
    let bench = Bench::new(&format!("sleep 0.1\n{}", answer(r#""cacheKeyType": "Image""#)));
    let provider = Arc::new(bench.provider(""));
    let ask = |_| {
        tokio::spawn({
            let provider = provider.clone();
            async move { provider.logins("r.io/a", nobody(), T0).await.unwrap() }
        })
    };
    for task in (0..8).map(ask).collect::<Vec<_>>() {
        assert!(task.await.unwrap().0.is_empty());
    }
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_provider_may_act_for_the_service_account() {
    let auth = r#""auth": {"r.io": {"username": "me", "password": "pw"}}"#;
    let bench = Bench::new(&answer(&format!(r#""cacheKeyType": "Global", {auth}"#)));
    let provider = bench.provider(&attributes(true, "x.io/role", "ServiceAccount"));
    assert!(provider.needs_accounts());
    let known = accounts();
    let ask =
        async |pod: Pod| provider.logins("r.io/a", Asker { pod: &pod, accounts: Some(&known) }, T0).await;
    let (logins, account) = ask(pod("p1", "robot")).await.unwrap();
    assert_eq!(logins["r.io"].username, "me");
    let robot = ServiceAccountRef { uid: "u-robot".into(), namespace: "ns".into(), name: "robot".into() };
    assert_eq!(account, Some(robot.clone()));
    let request = std::fs::read_to_string(bench.dir.path().join("request")).unwrap();
    let request: serde_json::Value = serde_json::from_str(&request).unwrap();
    assert_eq!(request["serviceAccountToken"], "token-u-robot-aud-p1");
    let annotations = serde_json::json!({"x.io/role": "puller", "x.io/hint": "h"});
    assert_eq!(request["serviceAccountAnnotations"], annotations, "what was asked for and nothing else");

    // Another Pod of the account profits, another account does not, whatever the answer says of the registry.
    assert_eq!(ask(pod("p2", "robot")).await.unwrap().1, Some(robot));
    assert_eq!(bench.runs(), 1);
    ask(pod("p3", "mate")).await.unwrap();
    assert_eq!(bench.runs(), 2);

    // Neither one who has not opted in nor one without an account is an error; the program is not run.
    for pod in [pod("p4", "plain"), pod("p5", "")] {
        let (logins, account) = ask(pod).await.unwrap();
        assert!(logins.is_empty() && account.is_none());
    }
    let error = ask(pod("p6", "gone")).await.unwrap_err().to_string();
    assert!(error.contains("failed to get service account: serviceaccounts \"gone\" not found"), "{error}");
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn an_answer_may_be_good_for_one_token_only() {
    let script = answer(
        r#""cacheKeyType": "Global", "auth": {"r.io": {"username": "me", "password": "token-u-robot-aud-p1"}}"#,
    );
    let known = accounts();
    let bench = Bench::new(&script);
    let provider = bench.provider(&attributes(true, "", "Token"));
    for (name, runs) in [("p1", 1), ("p1", 1), ("p2", 2)] {
        let pod = pod(name, "robot");
        provider.logins("r.io/a", Asker { pod: &pod, accounts: Some(&known) }, T0).await.unwrap();
        assert_eq!(bench.runs(), runs, "{name}");
    }
    // A token that comes back would be remembered for the whole account.
    let bench = Bench::new(&script);
    let provider = bench.provider(&attributes(true, "", "ServiceAccount"));
    let pod = pod("p1", "robot");
    let error = provider.logins("r.io/a", Asker { pod: &pod, accounts: Some(&known) }, T0).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("cacheType Token") && !error.contains("token-u-robot"), "{error}");
}

#[tokio::test]
async fn a_provider_that_does_not_require_an_account_serves_pods_without_one() {
    let auth = r#""auth": {"r.io": {"username": "me", "password": "pw"}}"#;
    let bench = Bench::new(&answer(&format!(r#""cacheKeyType": "Global", {auth}"#)));
    let provider = bench.provider(&attributes(false, "", "ServiceAccount"));
    assert!(!provider.needs_accounts());
    let (logins, account) = provider.logins("r.io/a", nobody(), T0).await.unwrap();
    assert_eq!((logins.len(), account), (1, None));
    let request = std::fs::read_to_string(bench.dir.path().join("request")).unwrap();
    assert!(!request.contains("serviceAccount"), "{request}");
    let pod = pod("p1", "robot");
    let error = provider.logins("r.io/a", Asker { pod: &pod, accounts: None }, T0).await.unwrap_err();
    assert!(error.to_string().contains("no API server"), "{error}");
}

#[tokio::test]
async fn trouble_is_told_without_secrets() {
    let wrong_version = answer(r#""cacheKeyType": "Image""#).replace("v1\"", "v1beta1\"");
    let rows = [
        ("echo no luck >&2; exit 3".to_owned(), "exit status: 3: no luck"),
        ("echo hunter2".to_owned(), "its answer is not a CredentialProviderResponse"),
        (answer(r#""cacheKeyType": "Image", "auth": {"r.io": "hunter2"}"#), "its answer is not"),
        (answer(r#""cacheKeyType": "Sometimes""#), "cacheKeyType \"Sometimes\""),
        (wrong_version, "expected credentialprovider.kubelet.k8s.io/v1"),
        ("yes hunter2 | head -c 3000000".to_owned(), "larger than"),
    ];
    for (script, text) in rows {
        let error =
            Bench::new(&script).provider("").logins("r.io/a", nobody(), T0).await.unwrap_err().to_string();
        assert!(error.contains(text) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_configuration_is_checked_as_a_whole() {
    let bench = Bench::new("true");
    let dir = bench.dir.path().join("conf.d");
    std::fs::create_dir(&dir).unwrap();
    let load = || load_providers(&dir, &bench.bin(), false);
    assert!(load().unwrap_err().to_string().contains("no configuration files"));
    let head = r#""apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig""#;
    let good = format!(
        r#"{{"name": "p", "apiVersion": "{V1}", "matchImages": ["a"], "defaultCacheDuration": "0s"}}"#
    );
    std::fs::write(dir.join("10.json"), format!(r#"{{{head}, "providers": [{good}]}}"#)).unwrap();
    assert_eq!(load().unwrap().len(), 1);

    let bad = format!(
        r#"{{{head}, "providers": [{{"name": "../p", "apiVersion": "v9", "defaultCacheDuration": "-1s"}},
        {{"name": "q", "apiVersion": "{V1}", "matchImages": ["a"], "defaultCacheDuration": "1s",
          "tokenAttributes": {{"serviceAccountTokenAudience": "x", "requireServiceAccount": false,
            "requiredServiceAccountAnnotationKeys": ["a b", "c"], "optionalServiceAccountAnnotationKeys": ["c", "c"],
            "cacheType": "Never"}}}}, {good}]}}"#
    );
    std::fs::write(dir.join("20.yaml"), bad).unwrap();
    std::fs::write(dir.join("30.yml"), format!(r#"{{{head}, "provider": []}}"#)).unwrap();
    std::fs::write(dir.join("40.yml"), "kind: Pod\napiVersion: v1\n").unwrap();
    std::fs::write(dir.join("ignored.txt"), "]").unwrap();
    let text = load().unwrap_err().to_string();
    for part in [
        "providers[0].name: \"../p\"",
        "providers[0].apiVersion: \"v9\"",
        "providers[0].matchImages",
        "providers[0].defaultCacheDuration: must not be negative",
        "providers[1].tokenAttributes: not supported when the feature gate",
        "providers[1].tokenAttributes.requiredServiceAccountAnnotationKeys: requireServiceAccount cannot be false",
        "providers[1].tokenAttributes.requiredServiceAccountAnnotationKeys: \"a b\": ",
        "providers[1].tokenAttributes.optionalServiceAccountAnnotationKeys: \"c\": duplicate",
        "providers[1].tokenAttributes: annotation keys cannot be both required and optional: [\"c\"]",
        "providers[1].tokenAttributes.cacheType: \"Never\" is neither",
        "q is not an executable file",
        "providers[2].name: duplicate provider \"p\"",
        "30.yml: unknown field `provider`",
        "40.yml: Pod of v1 is not",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}
