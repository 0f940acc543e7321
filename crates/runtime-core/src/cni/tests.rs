#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const LIST: &str = r#"{"cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.0.0", "9.9.9"], "name": "pods", "plugins": [
    {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local"}},
    {"type": "portmap", "capabilities": {"portMappings": true, "dns": false}}]}"#;

fn attachment() -> Attachment {
    let capabilities = json!({ "portMappings": [{ "hostPort": 80 }], "dns": {}, "bandwidth": {} });
    Attachment {
        container: "abc".into(),
        namespace: Some("/run/netns/abc".into()),
        interface: "eth0".into(),
        arguments: pod_arguments("default", "web;X=1", "uid", "abc"),
        capabilities: capabilities.as_object().unwrap().clone(),
    }
}

#[test]
fn plugins_are_told_their_own_part_and_what_came_before() {
    let network = network(LIST).unwrap();
    assert_eq!((network.name.as_str(), network.version.as_str()), ("pods", "1.0.0"));
    let before = json!({ "ips": [] });
    let call = network.call(1, Verb::Add, &attachment(), Some(&before), "/opt/cni/bin");
    assert_eq!(call.program, "portmap");
    let input: Value = serde_json::from_str(&call.input).unwrap();
    assert_eq!(
        input,
        json!({ "type": "portmap", "name": "pods", "cniVersion": "1.0.0", "prevResult": { "ips": [] },
            "runtimeConfig": { "portMappings": [{ "hostPort": 80 }] } })
    );
    let variable = |name| call.environment.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
    assert_eq!(variable("CNI_COMMAND"), Some("ADD"));
    assert_eq!(variable("CNI_NETNS"), Some("/run/netns/abc"));
    let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=webX=1;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=uid";
    assert_eq!(variable("CNI_ARGS"), Some(arguments));
    let first = network.call(0, Verb::Add, &attachment(), None, "");
    assert!(!first.input.contains("runtimeConfig") && !first.input.contains("prevResult"));
}

#[test]
fn deletions_go_backwards_and_need_no_namespace() {
    let network = network(LIST).unwrap();
    assert_eq!(network.order(Verb::Add), [0, 1]);
    assert_eq!(network.order(Verb::Del), [1, 0]);
    let gone = Attachment { namespace: None, ..attachment() };
    let call = network.call(0, Verb::Del, &gone, None, "");
    assert!(call.environment.contains(&("CNI_NETNS", String::new())));
}

#[test]
fn a_file_of_one_plugin_is_a_list_of_one() {
    let network = network(r#"{"cniVersion": "0.3.1", "name": "lo", "type": "loopback"}"#).unwrap();
    assert_eq!((network.program(0), network.version.as_str()), ("loopback", "0.3.1"));
}

#[test]
fn what_cannot_be_a_plugin_is_refused() {
    let rows = [
        (r#"{"name": "x", "plugins": [{"type": "../../bin/sh"}]}"#, "is not the name of a plugin"),
        (r#"{"name": "x", "plugins": [{"type": ".."}]}"#, "is not the name of a plugin"),
        (r#"{"name": "x", "plugins": [{}]}"#, "is not the name of a plugin"),
        (r#"{"name": "x", "plugins": []}"#, "it has no plugins"),
        (r#"{"name": "a/b", "plugins": [{"type": "bridge"}]}"#, "no file name"),
        (r#"{"plugins": [{"type": "bridge"}]}"#, "no name"),
        ("[]", "not an object"),
        ("{", "not understood"),
    ];
    for (text, want) in rows {
        let error = network(text).unwrap_err().to_string();
        assert!(error.contains(want), "{text}: {error}");
    }
}

#[test]
fn the_pods_addresses_are_those_inside_and_version_four_comes_first() {
    let result = json!({
        "interfaces": [{ "name": "cni0" }, { "name": "veth1", "sandbox": "" }, { "name": "eth0", "sandbox": "/run/netns/a" }],
        "ips": [
            { "address": "fd00::2/64", "interface": 2 },
            { "address": "10.0.0.2/24", "interface": 2 },
            { "address": "10.9.9.9/24", "interface": 0 },
        ],
    });
    let attached = attached("bridge", result).unwrap();
    let addresses: Vec<String> = attached.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.2", "fd00::2"]);
    let bad = json!({ "ips": [{ "address": "nowhere" }] });
    assert!(super::attached("x", bad).is_err());
}

#[test]
fn errors_are_told_in_the_plugins_words() {
    let text = br#"{"cniVersion": "1.0.0", "code": 11, "msg": "try again", "details": "busy"}"#;
    let error = answer("bridge", false, text, b"").unwrap_err();
    assert_eq!(error.to_string(), "network plugin bridge: try again; busy");
    let error = answer("bridge", false, b"", b"panic: oh no\n").unwrap_err();
    assert_eq!(error.to_string(), "network plugin bridge: it failed without saying why; panic: oh no");
    assert_eq!(answer("bridge", true, b" \n", b"").unwrap(), None);
    assert!(answer("bridge", true, b"{", b"").is_err());
}

proptest! {
    #[test]
    fn any_text_is_survived(text in ".{0,300}") {
        let _ = network(&text);
        let _ = answer("x", true, text.as_bytes(), b"").map(|value| value.map(|v| attached("x", v)));
    }
}
