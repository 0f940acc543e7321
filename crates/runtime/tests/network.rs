//! Networks by programs: plugins that write down how they were called.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use runtime::network::{NetworkError, Networks};
use runtime_core::cni::Attachment;

/// A plugin that notes its verb and input, and answers with `body`.
fn plugin(dir: &Path, name: &str, body: &str) {
    let script = format!(
        "#!/bin/sh\ninput=$(cat)\necho \"{name} $CNI_COMMAND $input\" >> {}/calls\n{body}\n",
        dir.display()
    );
    let path = dir.join("bin").join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn networks(dir: &Path) -> Networks {
    for name in ["bin", "conf"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let list =
        r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "first"}, {"type": "second"}]}"#;
    fs::write(dir.join("conf/10-pods.conflist"), list).unwrap();
    fs::write(dir.join("conf/05-readme.txt"), "not a network").unwrap();
    fs::write(dir.join("conf/20-later.conf"), "{}").unwrap();
    let result = r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}'"#;
    plugin(dir, "first", result);
    plugin(dir, "second", result);
    Networks { conf_dir: dir.join("conf"), bin_dirs: vec![dir.join("bin")], cache_dir: dir.join("cache") }
}

fn attachment() -> Attachment {
    Attachment {
        container: "abc".into(),
        namespace: Some("/run/netns/abc".into()),
        interface: "eth0".into(),
        ..Attachment::default()
    }
}

fn calls(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn what_was_attached_is_detached_with_what_was_answered_then() {
    let dir = tempfile::tempdir().unwrap();
    let networks = networks(dir.path());
    let (network, config) = networks.load().unwrap();
    let attached = networks.add(&network, &config, &attachment()).await.unwrap();
    assert_eq!(attached.addresses[0].to_string(), "10.1.2.3");
    let kept = dir.path().join("cache/pods-abc-eth0");
    let entry: serde_json::Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    assert_eq!((entry["kind"].as_str(), entry["networkName"].as_str()), (Some("cniCacheV1"), Some("pods")));
    networks.del(&network, &Attachment { namespace: None, ..attachment() }).await.unwrap();
    assert!(!kept.exists());
    let calls = calls(dir.path());
    let starts: Vec<String> =
        calls.iter().map(|c| c.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(starts, ["first ADD", "second ADD", "second DEL", "first DEL"]);
    assert!(!calls[0].contains("prevResult"));
    assert!(
        calls[1..].iter().all(|call| call.contains("prevResult") && call.contains("10.1.2.3")),
        "{calls:#?}"
    );
    networks.del(&network, &attachment()).await.unwrap();
}

#[tokio::test]
async fn what_fails_half_way_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let networks = networks(dir.path());
    let fail = r#"[ "$CNI_COMMAND" = DEL ] || { echo '{"code": 7, "msg": "no room"}'; exit 1; }"#;
    plugin(dir.path(), "second", fail);
    let (network, config) = networks.load().unwrap();
    let error = networks.add(&network, &config, &attachment()).await.unwrap_err();
    assert_eq!(error.to_string(), "network plugin second: no room");
    let verbs = calls(dir.path()).iter().filter(|call| call.contains(" DEL ")).count();
    assert_eq!(verbs, 2);
    assert!(!dir.path().join("cache/pods-abc-eth0").exists());
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let networks = networks(dir.path());
    let (network, config) = networks.load().unwrap();
    fs::remove_file(dir.path().join("bin/first")).unwrap();
    let error = networks.add(&network, &config, &attachment()).await.unwrap_err();
    assert!(matches!(&error, NetworkError::Missing(name) if name == "first"), "{error}");
    fs::remove_dir_all(dir.path().join("conf")).unwrap();
    assert!(matches!(networks.load(), Err(NetworkError::None(_))));
}

#[tokio::test]
async fn what_is_attached_for_nobody_is_found_and_detached() {
    let dir = tempfile::tempdir().unwrap();
    let networks = networks(dir.path());
    let (network, config) = networks.load().unwrap();
    let with = Attachment { arguments: vec![("K8S_POD_NAME".into(), "web".into())], ..attachment() };
    networks.add(&network, &config, &with).await.unwrap();
    assert!(networks.leftovers(|container| container == "abc").is_empty());
    let left = networks.leftovers(|_| false);
    let [(_, found, attachment)] = &left[..] else { panic!("{left:?}") };
    assert_eq!((found, attachment), (&network, &Attachment { namespace: None, ..with }));
    networks.del(found, attachment).await.unwrap();
    assert!(networks.leftovers(|_| false).is_empty());
}
