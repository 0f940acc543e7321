//! Providers as shell scripts in a temporary directory.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;

use super::*;

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
        load_providers(&config, &self.bin()).unwrap().remove(0)
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("runs")).unwrap_or_default().lines().count()
    }
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
        let logins = provider.logins("r.io/a", T0).await.unwrap();
        assert_eq!(logins["r.io"].username, "me");
        for (repository, expected) in ["r.io/a", "r.io/b", "s.io/a"].into_iter().zip(runs) {
            provider.logins(repository, T0).await.unwrap();
            assert_eq!(bench.runs(), expected, "{key} {duration} {repository}");
        }
        let request = std::fs::read_to_string(bench.dir.path().join("request")).unwrap();
        assert!(request.starts_with(r#"{"kind":"CredentialProviderRequest","#), "{request}");
        assert!(request.contains(V1) && request.contains(r#""image":"#), "{request}");
        assert!(provider.logins("example.com/a", T0).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn the_cache_expires_and_arguments_and_environment_arrive() {
    let script =
        answer(r#""cacheKeyType": "Image", "auth": {"r.io": {"username": "$1-$2", "password": "$TOKEN"}}"#);
    let bench = Bench::new(&script);
    let provider = bench.provider("  args: [one, two]\n  env: [{name: TOKEN, value: secret}]\n");
    let login = provider.logins("r.io/a", T0).await.unwrap()["r.io"].clone();
    assert_eq!((login.username.as_str(), login.password.as_str()), ("one-two", "secret"));
    provider.logins("r.io/a", Mono(Duration::from_secs(60))).await.unwrap();
    assert_eq!(bench.runs(), 1);
    provider.logins("r.io/a", Mono(Duration::from_secs(61))).await.unwrap();
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn many_askers_one_run() {
    let bench = Bench::new(&format!("sleep 0.1\n{}", answer(r#""cacheKeyType": "Image""#)));
    let provider = Arc::new(bench.provider(""));
    let ask = |_| {
        tokio::spawn({
            let provider = provider.clone();
            async move { provider.logins("r.io/a", T0).await.unwrap() }
        })
    };
    for task in (0..8).map(ask).collect::<Vec<_>>() {
        assert!(task.await.unwrap().is_empty());
    }
    assert_eq!(bench.runs(), 1);
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
        let error = Bench::new(&script).provider("").logins("r.io/a", T0).await.unwrap_err().to_string();
        assert!(error.contains(text) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_configuration_is_checked_as_a_whole() {
    let bench = Bench::new("true");
    let dir = bench.dir.path().join("conf.d");
    std::fs::create_dir(&dir).unwrap();
    let load = || load_providers(&dir, &bench.bin());
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
          "tokenAttributes": {{"serviceAccountTokenAudience": "x"}}}}, {good}]}}"#
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
        "providers[1].tokenAttributes: service account tokens need an API server",
        "q is not an executable file",
        "providers[2].name: duplicate provider \"p\"",
        "30.yml: unknown field `provider`",
        "40.yml: Pod of v1 is not",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}
