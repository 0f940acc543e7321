//! One row per ailment: what is made wrong, and the first thing that the doctor names.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proxy_core::doctor::{Dial, Facts, Frontend, Grade, Treatment, examine, verdict};
use proxy_core::objects::{Protocol, ServiceKey};
use serde_json::{Value, json};

fn from<T: k8s_openapi::serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn endpoint() -> SocketAddr {
    "10.244.0.5:8080".parse().unwrap()
}

fn sent() -> Treatment {
    Treatment::Sent(BTreeSet::from([endpoint()]))
}

/// A Service that works.
fn healthy() -> Facts {
    Facts {
        service: Some(from(json!({
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
                     "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
        }))),
        pods: vec![from(json!({
            "metadata": {"name": "web-1", "labels": {"app": "web", "x": "y"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }))],
        slices: vec![from(json!({
            "metadata": {"name": "web-x"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.244.0.5"], "conditions": {"ready": true}}],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        }))],
        mode: Some("nftables"),
        is_proxy_healthy: Some(true),
        frontends: vec![Frontend {
            address: "10.96.0.10:80".parse().unwrap(),
            is_cluster_ip: true,
            protocol: Protocol::Tcp,
            should: sent(),
            does: sent(),
            dial: Some(Dial::Connected),
            endpoints: BTreeMap::new(),
        }],
        stale_flows: 0,
    }
}

fn change(facts: &mut Facts, over: Value) {
    let mut service = serde_json::to_value(facts.service.take().unwrap()).unwrap();
    for (key, value) in over.as_object().unwrap() {
        for (inner, value) in value.as_object().unwrap() {
            service[key][inner] = value.clone();
        }
    }
    facts.service = Some(from(service));
}

fn first_wrong(spoil: impl FnOnce(&mut Facts)) -> String {
    let mut facts = healthy();
    spoil(&mut facts);
    let findings = examine(&ServiceKey::new("default", "web"), &facts);
    let wrong = verdict(&findings);
    assert!(wrong.is_none_or(|finding| !finding.advice.is_empty()), "{wrong:?}");
    wrong.map(|finding| finding.text.clone()).unwrap_or_default()
}

#[test]
fn a_healthy_service_has_nothing_wrong() {
    assert_eq!(first_wrong(|_| {}), "");
    let findings = examine(&ServiceKey::new("default", "web"), &healthy());
    assert!(findings.iter().all(|finding| finding.grade == Grade::Good), "{findings:?}");
    assert_eq!(findings.len(), 6);
}

#[test]
fn the_first_ailment_is_named() {
    type Spoil = fn(&mut Facts);
    let rows: Vec<(Spoil, &str)> = vec![
        (|f| f.service = None, "there is no Service default/web"),
        (
            |f| change(f, json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}})),
            "Service default/web is given to another proxy, \"x\"",
        ),
        (|f| change(f, json!({"spec": {"clusterIP": ""}})), "Service default/web has no address yet"),
        (|f| f.pods.clear(), "no Pod has the labels that it selects, app=web"),
        (
            |f| {
                change(f, json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}));
                f.pods.clear();
            },
            "no Pod has the labels that it selects, app=web",
        ),
        (
            |f| {
                change(f, json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}));
                f.slices.clear();
            },
            "no EndpointSlice belongs to it",
        ),
        (
            |f| f.pods[0].status.as_mut().unwrap().conditions = None,
            "0 of 1 Pods that it selects are ready: web-1 is Running",
        ),
        (
            |f| {
                f.pods[0].status = Some(from(json!({"phase": "Pending", "containerStatuses": [
                    {"name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                     "state": {"waiting": {"reason": "ImagePullBackOff"}}}]})));
            },
            "0 of 1 Pods that it selects are ready: web-1: container c waits, ImagePullBackOff",
        ),
        (
            |f| {
                f.pods[0].status = Some(from(json!({"phase": "Running", "containerStatuses": [
                    {"name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": ""}]})));
            },
            "0 of 1 Pods that it selects are ready: web-1: container c runs and is not ready",
        ),
        (|f| f.slices.clear(), "no EndpointSlice belongs to it"),
        (
            |f| f.slices[0].endpoints.as_mut().unwrap()[0].conditions.as_mut().unwrap().ready = Some(false),
            "its EndpointSlices name 1 endpoints and none is ready",
        ),
        (
            |f| f.slices[0].ports.as_mut().unwrap()[0].name = Some("other".into()),
            "no EndpointSlice says where port \"http\" (80/TCP) leads",
        ),
        (
            |f| {
                (f.mode, f.is_proxy_healthy) = (None, None);
                f.frontends[0].dial = Some(Dial::Silence);
            },
            "no rules of a kube-proxy are in this machine's kernel, and none answers on port 10256",
        ),
        (
            |f| (f.mode, f.frontends[0].dial) = (None, None),
            "kube-proxy answers, but no rules of it are in this kernel",
        ),
        (|f| f.is_proxy_healthy = Some(false), "kube-proxy cannot bring its nftables rules to the kernel"),
        (
            |f| f.frontends[0].does = Treatment::Nothing,
            "the kernel does nothing with packets for 10.96.0.10:80/tcp, but should send them to 10.244.0.5:8080",
        ),
        (
            |f| f.frontends[0].does = Treatment::Sent(BTreeSet::from(["10.244.9.9:1".parse().unwrap()])),
            "the kernel sends packets for 10.96.0.10:80/tcp to 10.244.9.9:1, but should send them to 10.244.0.5:8080",
        ),
        (
            |f| {
                f.frontends[0].dial = Some(Dial::Refused);
                f.frontends[0].endpoints.insert(endpoint(), Dial::Refused);
            },
            "a connection to 10.96.0.10:80/tcp was refused; called directly, 10.244.0.5:8080 was refused",
        ),
        (
            |f| {
                f.frontends[0].dial = Some(Dial::Silence);
                f.frontends[0].endpoints.insert(endpoint(), Dial::Connected);
            },
            "a connection to 10.96.0.10:80/tcp met silence, although its endpoints answer when called directly",
        ),
        (|f| f.frontends[0].dial = Some(Dial::Unreachable), "a connection to 10.96.0.10:80/tcp found no way"),
        (|f| f.stale_flows = 3, "3 flows still lead to endpoints that are gone"),
    ];
    for (spoil, wanted) in rows {
        assert_eq!(first_wrong(spoil), wanted);
    }
}

/// With the names filled in, a hint is something to type.
#[test]
fn what_people_get_wrong_is_told_with_names() {
    type Spoil = fn(&mut Facts);
    let port =
        |target: &str| json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": target}]}});
    let rows: Vec<(Spoil, &str, &str)> = vec![
        (
            |f| change(f, json!({"spec": {"selector": {"app": "wbe"}}})),
            "no Pod has the labels that it selects, app=wbe; Pod web-1 has app=web",
            "kubectl get pods -n default --show-labels",
        ),
        (
            |f| {
                let headless = json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": {"app": "web", "tier": "a"}});
                change(f, json!({ "spec": headless }));
            },
            "no Pod has the labels that it selects, app=web,tier=a; Pod web-1 lacks only tier",
            "kubectl get service -n default web",
        ),
        (
            |f| {
                change(f, json!({"spec": {"selector": {}}}));
                f.slices.clear();
            },
            "it selects no Pods, and nobody made an EndpointSlice for it",
            "kubectl set selector -n default service web",
        ),
        (
            |f| change(f, json!({"spec": {"type": "LoadBalancer"}})),
            "it waits for an address from outside",
            "kubectl describe service -n default web",
        ),
        (
            |f| change(f, json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/x"}})),
            "it waits for an address from outside",
            "class \"example.com/x\"",
        ),
    ];
    let mut facts = healthy();
    facts.pods[0].spec =
        Some(from(json!({"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]})));
    facts.slices[0].ports = None;
    change(&mut facts, port("wbe"));
    let findings = examine(&ServiceKey::new("default", "web"), &facts);
    let advice = "its targetPort is \"wbe\", and the names of its Pods' ports are: web";
    assert_eq!(verdict(&findings).unwrap().advice, advice);
    for (spoil, wanted, advice) in rows {
        let mut facts = healthy();
        spoil(&mut facts);
        let findings = examine(&ServiceKey::new("default", "web"), &facts);
        let wrong = verdict(&findings).unwrap();
        assert_eq!(wrong.text, wanted);
        assert!(wrong.advice.contains(advice), "{wrong:?}");
    }
    let given = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    assert_eq!(first_wrong(|f| change(f, json!({"spec": {"type": "LoadBalancer"}, "status": given}))), "");
}

#[test]
fn what_is_not_ours_is_no_ailment() {
    for over in [
        json!({"spec": {"clusterIP": "None"}}),
        json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}),
        json!({"spec": {"selector": {}}}),
        json!({"spec": {"publishNotReadyAddresses": true}}),
    ] {
        assert_eq!(first_wrong(|facts| change(facts, over.clone())), "", "{over}");
    }
    // Endpoints that leave still serve.
    let leaving = json!({"ready": false, "serving": true, "terminating": true});
    assert_eq!(
        first_wrong(|f| f.slices[0].endpoints.as_mut().unwrap()[0].conditions = Some(from(leaving))),
        ""
    );
    // An address for others that is shut to this node.
    let shut = |f: &mut Facts| {
        (f.frontends[0].should, f.frontends[0].does) = (Treatment::Dropped, Treatment::Dropped);
        (f.frontends[0].dial, f.frontends[0].is_cluster_ip) = (Some(Dial::Silence), false);
    };
    assert_eq!(first_wrong(shut), "");
    // A program that says nothing to an empty datagram may be well.
    let quiet = |f: &mut Facts| {
        (f.frontends[0].protocol, f.frontends[0].dial) = (Protocol::Udp, Some(Dial::Silence));
        f.frontends[0].endpoints.insert(endpoint(), Dial::Silence);
    };
    assert_eq!(first_wrong(quiet), "");
    let shut = |f: &mut Facts| {
        (f.frontends[0].protocol, f.frontends[0].dial) = (Protocol::Udp, Some(Dial::Refused));
        f.frontends[0].endpoints.insert(endpoint(), Dial::Refused);
    };
    assert_eq!(
        first_wrong(shut),
        "a connection to 10.96.0.10:80/udp was refused; called directly, 10.244.0.5:8080 was refused"
    );
    // Whoever serves it, it works.
    assert_eq!(first_wrong(|f| (f.mode, f.is_proxy_healthy) = (None, None)), "");
    // Somebody who looks without a proxy that answers is told, but the rules may be good.
    assert_eq!(first_wrong(|f| f.is_proxy_healthy = None), "");
}
