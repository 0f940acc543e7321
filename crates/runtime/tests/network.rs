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
    Networks {
        conf_dir: dir.join("conf"),
        bin_dirs: vec![dir.join("bin")],
        cache_dir: dir.join("cache"),
        built_in: None,
    }
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

/// A network of the newest contract, by a plugin that says `body`.
fn newest(dir: &Path, body: &str) -> Networks {
    let networks = networks(dir);
    let list =
        r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "first"}, {"type": "second"}]}"#;
    fs::write(dir.join("conf/10-pods.conflist"), list).unwrap();
    plugin(dir, "first", body);
    networks
}

#[tokio::test]
async fn a_network_says_itself_whether_it_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let networks = newest(dir.path(), r#"echo '{"code": 50, "msg": "no address is left"}'; exit 1"#);
    let (network, _) = networks.load().unwrap();
    let error = networks.status(&network).await.unwrap_err();
    assert_eq!(error.to_string(), "network plugin first: no address is left");
    plugin(dir.path(), "first", "");
    networks.status(&network).await.unwrap();
    assert!(calls(dir.path()).last().unwrap().starts_with("second STATUS "));
    // The one before did not have the question: it is enough that the plugins are there.
    let old =
        runtime_core::cni::network(r#"{"cniVersion": "1.0.0", "name": "x", "type": "nobody"}"#).unwrap();
    assert!(matches!(networks.status(&old).await, Err(NetworkError::Missing(name)) if name == "nobody"));
}

#[tokio::test]
async fn garbage_is_collected_by_every_plugin_whatever_becomes_of_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let networks = newest(dir.path(), "exit 1");
    let (network, _) = networks.load().unwrap();
    let valid = [("abc".to_owned(), "eth0".to_owned())];
    assert!(networks.collect(&network, &valid).await.is_err());
    let calls = calls(dir.path());
    let verbs: Vec<&str> = calls.iter().filter_map(|call| call.split(' ').nth(1)).collect();
    assert_eq!(verbs, ["GC", "GC"]);
    assert!(
        calls[1].contains(r#""cni.dev/valid-attachments":[{"containerID":"abc","ifname":"eth0"}]"#),
        "{calls:?}"
    );
}

#[tokio::test]
async fn plugins_of_a_network_may_have_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let networks = networks(dir.path());
    fs::write(dir.path().join("conf/10-pods.conflist"), r#"{"cniVersion": "1.1.0", "name": "pods"}"#)
        .unwrap();
    assert!(matches!(networks.load(), Err(NetworkError::Config { .. })));
    fs::create_dir(dir.path().join("conf/pods")).unwrap();
    for (file, kind) in [("2.conf", "second"), ("1.conf", "first"), ("3.txt", "third")] {
        fs::write(dir.path().join("conf/pods").join(file), format!(r#"{{"type": "{kind}"}}"#)).unwrap();
    }
    let (network, _) = networks.load().unwrap();
    assert_eq!([network.program(0), network.program(1)], ["first", "second"]);
    let inlined = r#"{"cniVersion": "1.1.0", "name": "pods", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "first"}]}"#;
    fs::write(dir.path().join("conf/10-pods.conflist"), inlined).unwrap();
    assert_eq!(networks.load().unwrap().0.order(runtime_core::cni::Verb::Add), [0]);
}

/// Nobody waits for it, so it ends; so do those that it started.
#[tokio::test]
async fn a_plugin_that_hangs_is_ended_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let networks =
        newest(dir.path(), "sleep 600 &\necho $! > $CNI_PATH/child\necho $$ > $CNI_PATH/own\nwait");
    let (network, _) = networks.load().unwrap();
    let read = |name: &str| fs::read_to_string(dir.path().join("bin").join(name)).unwrap_or_default();
    {
        let hanging = networks.status(&network);
        tokio::pin!(hanging);
        while read("own").is_empty() {
            let nap = tokio::time::timeout(std::time::Duration::from_millis(5), &mut hanging);
            assert!(nap.await.is_err(), "it was to hang");
        }
    }
    for name in ["child", "own"] {
        let stat = format!("/proc/{}/stat", read(name).trim());
        let is_running = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        while is_running() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

#[derive(Debug)]
struct Inside;

impl runtime::network::BuiltIn for Inside {
    fn has(&self, plugin: &str) -> bool {
        plugin == "first"
    }

    fn call(&self, call: &runtime_core::cni::Call) -> (bool, Vec<u8>) {
        assert_eq!(call.program, "first");
        (true, br#"{"cniVersion":"1.0.0","ips":[{"address":"10.9.9.9/24"}]}"#.to_vec())
    }
}

#[tokio::test]
async fn a_plugin_that_is_built_in_needs_no_program_and_makes_way_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let networks = Networks { built_in: Some(std::sync::Arc::new(Inside)), ..networks(dir.path()) };
    let only = r#"{"cniVersion": "1.0.0", "name": "pods", "type": "first"}"#;
    fs::write(dir.path().join("conf/10-pods.conflist"), only).unwrap();
    let (network, config) = networks.load().unwrap();
    let theirs = networks.add(&network, &config, &attachment()).await.unwrap();
    assert_eq!(theirs.addresses[0].to_string(), "10.1.2.3");
    fs::remove_file(dir.path().join("bin/first")).unwrap();
    let ours = networks.add(&network, &config, &attachment()).await.unwrap();
    assert_eq!(ours.addresses[0].to_string(), "10.9.9.9");
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
