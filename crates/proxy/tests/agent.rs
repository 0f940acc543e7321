//! The whole agent in a node's network namespace, fed by an API server that only lists and watches.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proxy::backend::nft::NftDataplane;
use proxy::doctor;
use proxy::ports::Dataplane;
use proxy::yield_flag::YieldFlag;
use proxy_core::objects::{Family, Protocol, ServiceKey};
use proxy_core::rules::{Mode, NodeRules, RuleSet};
use serde_json::{Value, json};
use support::agent::{Api, NODES, RANGES, SERVICES, SLICES, Talker, answers_to, get, run_agent, until};
use support::{Answer, Lab, Party, service, slices};
use tokio_util::sync::CancellationToken;

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const NFTABLES: [&str; 1] = ["--proxy-mode=nftables"];

#[test]
fn services_work_and_follow_their_endpoints() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lab.node.ns.ip("link set lo up\n").unwrap();
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let api = Api::new();
    let checked = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32100}});
    api.put(SERVICES, &[service("web", 10, checked)]);
    api.put(SLICES, &slices("web", &[a]));
    api.put(NODES, &[support::node()]);
    api.put(RANGES, &[support::service_cidr()]);
    let token = CancellationToken::new();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(&lab, api.clone(), &NFTABLES, token.clone()));
        let _stop = token.clone().drop_guard();
        until("the Service answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Tcp, "a"));
        until("in the other family", || answers_to(&lab, "[fd96::10]:80", Protocol::Udp, "a"));
        servers_answer(&lab);
        doctor_agrees(&lab, &api);
        // The endpoint moves: new connections and old flows go to the new one.
        for slice in slices("web", &[b]) {
            api.tell(SLICES, "MODIFIED", slice);
        }
        until("the new endpoint answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Tcp, "b"));
        api.tell(SERVICES, "DELETED", service("web", 10, json!({})));
        let gone: SocketAddr = "10.96.0.10:80".parse().unwrap();
        until("nobody answers", || !matches!(lab.pods[2].call(gone, Protocol::Tcp), Answer::From { .. }));
        until("the load balancer's port is closed", || get(&lab.node, "192.168.0.1:32100", "/").is_none());
        token.cancel();
        assert_eq!(agent.join().unwrap(), Ok(()));
    });
    assert!(api.has_event("Starting"));
    // The API server sends only what matters: a large cluster has many headless Services.
    let unnamed = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
    assert!(api.is_selected(SERVICES, &[unnamed, "fieldSelector=spec.clusterIP%21%3DNone"]));
    assert!(api.is_selected(SLICES, &["labelSelector=%21service.kubernetes.io%2Fheadless"]));
    assert!(api.is_selected(NODES, &["fieldSelector=metadata.name%3Dhere"]));
}

/// A server that has to be there and cannot ends the process, and users are told why.
#[test]
fn a_server_without_its_port_is_told_of() {
    if support::skipped() {
        return;
    }
    let rows = [
        ("127.0.0.1:10249", "FailedToStartMetricServer", "listening on 127.0.0.1:10249 for metrics"),
        ("0.0.0.0:10256", "FailedToStartProxierHealthcheck", "listening on 0.0.0.0:10256 for health"),
    ];
    for (address, reason, words) in rows {
        let lab = Lab::new();
        lab.node.ns.ip("link set lo up\n").unwrap();
        let api = Api::new();
        api.put(NODES, &[support::node()]);
        let _taken = lab.node.ns.within(|| std::net::TcpListener::bind(address)).unwrap();
        let args = ["--proxy-mode=nftables", "--bind-address-hard-fail"];
        let ended = run_agent(&lab, api.clone(), &args, CancellationToken::new()).unwrap_err();
        assert!(ended.starts_with(words), "{ended}");
        let event = api.event(reason).unwrap();
        assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("StartKubeProxy")));
        assert_eq!(event["note"], json!(ended));
        assert_eq!(event["regarding"]["name"], "here");
    }
}

/// Who cannot ask for Services has nothing to say to the kernel, not even about other modes' rules.
#[test]
fn without_credentials_the_kernel_is_left_as_it_is() {
    const LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let api = Api::new();
    api.put(NODES, &[support::node()]);
    let has_table =
        || lab.node.ns.within(|| NftDataplane::open(Family::V4, 14).unwrap().read().unwrap().is_there);
    let rules = RuleSet::empty(Family::V4, NodeRules::unknown(Mode::Nftables));
    lab.node.ns.within(|| {
        let mut table = NftDataplane::open(Family::V4, 14).unwrap();
        table.verify(&rules, &YieldFlag::default()).unwrap();
    });
    assert!(has_table());
    let read = || lab.node.ns.within(|| std::fs::read_to_string(LOCALNET)).unwrap();
    let before = read();
    for mode in ["--proxy-mode=iptables", "--proxy-mode=nftables"] {
        let args = [mode, "--kubeconfig=/nowhere/kubeconfig"];
        let ended = run_agent(&lab, api.clone(), &args, CancellationToken::new()).unwrap_err();
        assert!(ended.contains("/nowhere/kubeconfig"), "{ended}");
        assert!(has_table(), "{mode}");
        assert_eq!(read(), before, "{mode}");
    }
    assert!(!api.has_event("Starting"));
}

/// What the doctor says first, in the node.
fn verdict(lab: &Lab, api: &Api) -> Option<String> {
    let server = api.url();
    lab.node.ns.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = client::Config {
                server,
                tls_server_name: None,
                ca: None,
                insecure: false,
                proxy: None,
                identity: client::kubeconfig::Identity::default(),
                namespace: "ns".into(),
            };
            let client = client::Client::new(config, client::Options::default()).await.unwrap();
            let key = ServiceKey::new("ns", "web");
            let facts = doctor::gather(&client, "here", &key).await.unwrap();
            let findings = proxy_core::doctor::examine(&key, &facts);
            doctor::verdict(&findings).map(|finding| finding.text.clone())
        })
    })
}

fn doctor_agrees(lab: &Lab, api: &Api) {
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let web = service("web", 10, json!({}));
    api.show(&web, &slices("web", &[a]));
    assert_eq!(verdict(lab, api), None);
    // As if it had not heard of the node port.
    api.name("/api/v1/nodes/here", support::node());
    let ports = json!([{"name": "tcp", "protocol": "TCP", "port": 80, "nodePort": 30080}]);
    let outside = service("web", 10, json!({"spec": {"type": "NodePort", "ports": ports}}));
    api.show(&outside, &slices("web", &[a]));
    let wrong = verdict(lab, api).unwrap();
    assert!(wrong.contains("192.168.0.1:30080/tcp"), "{wrong}");
    // As if kube-proxy had not heard of the new endpoint.
    api.show(&web, &slices("web", &[b]));
    let wrong = verdict(lab, api).unwrap();
    let wanted = "the kernel sends packets for 10.96.0.10:80/tcp to 10.244.0.5:8080, but should send them to \
                  10.244.0.6:8080";
    assert_eq!(wrong, wanted);
    api.show(&web, &[]);
    assert_eq!(
        verdict(lab, api).as_deref(),
        Some("it selects no Pods, and nobody made an EndpointSlice for it")
    );
}

/// Flows follow their endpoints, also through a time without any: nothing but us would ever tell them.
#[test]
fn udp_flows_follow_their_endpoints() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lab.node.ns.ip("link set lo up\n").unwrap();
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let api = Api::new();
    api.put(SERVICES, &[service("web", 10, json!({}))]);
    api.put(SLICES, &slices("web", &[a]));
    api.put(NODES, &[support::node()]);
    let token = CancellationToken::new();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(&lab, api.clone(), &NFTABLES, token.clone()));
        let _stop = token.clone().drop_guard();
        until("the Service answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Udp, "a"));
        until("in the other family", || answers_to(&lab, "[fd96::10]:80", Protocol::Udp, "a"));
        let talkers = ["10.96.0.10:80", "[fd96::10]:80"].map(|to| Talker::new(&lab.pods[2], to));
        let all = |who: Option<&str>| talkers.iter().all(|talker| talker.ask().as_deref() == who);
        until("flows begin", || all(Some("a")));
        let told_last = std::cell::RefCell::new(Vec::new());
        let turn_to = |who: &[&Party]| {
            told_last.borrow_mut().clear();
            for mut slice in slices("web", who) {
                let now = jiff::Timestamp::now().to_string();
                slice.metadata.annotations = Some(BTreeMap::from([(TRIGGER.to_owned(), now)]));
                told_last.borrow_mut().push(slice.clone());
                api.tell(SLICES, "MODIFIED", slice);
            }
        };
        turn_to(&[b]);
        until("flows move", || all(Some("b")));
        turn_to(&[]);
        until("flows end", || all(None));
        turn_to(&[a]);
        until("flows find the new endpoint", || all(Some("a")));
        // A label says nothing of endpoints, nor does a list of what is known.
        for mut slice in told_last.borrow().clone() {
            slice.metadata.labels.as_mut().unwrap().insert("said-again".into(), "yes".into());
            api.tell(SLICES, "MODIFIED", slice);
        }
        let lists = api.count_lists(SLICES);
        api.replace(SLICES, &told_last.borrow());
        api.expire(SLICES);
        until("slices are listed again", || api.count_lists(SLICES) > lists);
        turn_to(&[b]);
        until("flows move again", || all(Some("b")));
        let metrics = get(&lab.node, "127.0.0.1:10249", "/metrics").unwrap().1;
        assert!(metrics.contains("kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}"));
        // From the change in the cluster to the rule in the kernel, once per change and family.
        for family in ["IPv4", "IPv6"] {
            let name =
                format!("kubeproxy_network_programming_duration_seconds_count{{ip_family=\"{family}\"}} 4\n");
            assert!(metrics.contains(&name), "{metrics}");
        }
        token.cancel();
        assert_eq!(agent.join().unwrap(), Ok(()));
    });
}

/// Before there are rules, packets to a node port go to the node itself, and so does whatever follows them: nothing but us
/// would ever tell those who do not pause.
#[test]
fn a_flow_that_began_before_the_rules_finds_its_endpoint() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lab.node.ns.ip("link set lo up\n").unwrap();
    let api = Api::new();
    let ports = json!([{"name": "udp", "protocol": "UDP", "port": 80, "nodePort": 30053}]);
    api.put(SERVICES, &[service("web", 10, json!({"spec": {"type": "NodePort", "ports": ports}}))]);
    api.put(SLICES, &slices("web", &[&lab.pods[0]]));
    let mut early = support::node();
    early.status = None;
    api.put(NODES, &[early]);
    // Somebody has to track connections before there are rules that need it.
    lab.node.ns.within(|| {
        let mut nft = sys::nft::Nftables::open().unwrap();
        let table = nft::TableId { family: nft::Family::Ip, name: "tracks".into() };
        let hook = nft::Hook { kind: nft::ChainType::Nat, point: nft::HookPoint::Prerouting, priority: -100 };
        let chain = nft::Chain { name: "all".into(), hook: Some(hook) };
        nft.commit(&table, &[nft::Message::AddTable, nft::Message::AddChain(chain)]).unwrap();
    });
    let talker = Talker::new(&lab.outside, "192.168.0.1:30053");
    assert_eq!(talker.ask(), None);
    let has_table =
        || lab.node.ns.within(|| NftDataplane::open(Family::V4, 14).unwrap().read().unwrap().is_there);
    let token = CancellationToken::new();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(&lab, api.clone(), &NFTABLES, token.clone()));
        let _stop = token.clone().drop_guard();
        // A Node that has no addresses yet is waited for: its node ports would be everywhere, or nowhere.
        until("the Node is watched", || api.is_watched(NODES));
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(talker.ask(), None);
        assert!(!has_table());
        api.tell(NODES, "MODIFIED", support::node());
        until("the flow finds its endpoint", || talker.ask().as_deref() == Some("a"));
        token.cancel();
        assert_eq!(agent.join().unwrap(), Ok(()));
    });
}

fn servers_answer(lab: &Lab) {
    let node = &lab.node;
    let (code, body) = get(node, "127.0.0.1:10256", "/healthz").unwrap();
    assert_eq!(code, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(true), &json!(true)));
    assert!(body["status"]["IPv4"]["healthy"] == json!(true), "{body}");
    assert_eq!(get(node, "127.0.0.1:10256", "/livez").unwrap().0, 200);
    assert_eq!(get(node, "127.0.0.1:10249", "/proxyMode").unwrap().1, "nftables");
    assert_eq!(get(node, "127.0.0.1:10249", "/healthz").unwrap().1, "ok");
    let flags = get(node, "127.0.0.1:10249", "/flagz").unwrap().1;
    assert!(flags.contains("\nhostname-override=here\n"), "{flags}");
    assert!(get(node, "127.0.0.1:10249", "/statusz").unwrap().1.contains("kube-proxy statusz"));
    let slis = get(node, "127.0.0.1:10249", "/metrics/slis").unwrap().1;
    assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1"), "{slis}");
    let configz = get(node, "127.0.0.1:10249", "/configz").unwrap().1;
    assert!(configz.contains("\"clusterCIDR\":\"10.244.0.0/16,fd44::/32\""), "{configz}");
    let metrics = get(node, "127.0.0.1:10249", "/metrics").unwrap().1;
    assert!(
        metrics.contains("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"),
        "{metrics}"
    );
    until("the load balancer is answered", || get(node, "192.168.0.1:32100", "/any").is_some());
    let (code, body) = get(node, "192.168.0.1:32100", "/any").unwrap();
    assert_eq!(code, 200, "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["localEndpoints"], json!(1));
}
