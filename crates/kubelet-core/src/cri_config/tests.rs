#![allow(clippy::unwrap_used)]

use super::testing::{Bench, pod};
use super::*;

const RICH: &str = "
hostname: shop-front
subdomain: web
terminationGracePeriodSeconds: 45
overhead: {cpu: 10m, memory: 1Mi}
hostAliases: [{ip: 10.9.9.9, hostnames: [db]}]
securityContext: {runAsUser: 1000, fsGroup: 3000, supplementalGroups: [4000], sysctls: [{name: net/ipv4/tcp_syncookies, value: '0'}]}
volumes: [{name: data, emptyDir: {}}]
initContainers:
  - {name: proxy, image: 'proxy:v2', restartPolicy: Always, resources: {requests: {cpu: 50m, memory: 32Mi}}}
containers:
  - name: main
    image: 'app:v1'
    command: ['/app', '--name=$(NAME)']
    args: ['$$(NAME)', '$(MISSING)']
    workingDir: /srv
    stdin: true
    stdinOnce: true
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{name: http, containerPort: 80, hostPort: 8080, protocol: TCP}]
    env:
      - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    lifecycle: {stopSignal: SIGUSR1, preStop: {exec: {command: [bye]}}}
    resources: {requests: {cpu: 250m, memory: 256Mi}, limits: {memory: 512Mi, hugepages-2Mi: 2Mi}}
    volumeMounts: [{name: data, mountPath: /data}]
    securityContext: {capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false, seccompProfile: {type: RuntimeDefault}}
ephemeralContainers:
  - {name: debug, image: 'busybox:1', targetContainerName: main, tty: true}
";

fn bench() -> Bench {
    let mut b = Bench::new(pod(RICH));
    b.pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    b.pod.metadata.annotations = Some([("note".to_owned(), "x".to_owned())].into());
    b.pod.metadata.deletion_grace_period_seconds = Some(7);
    b
}

#[test]
fn a_rich_pod() {
    let b = bench();
    insta::assert_debug_snapshot!("sandbox", sandbox(&b.sandbox_input()).unwrap());
    insta::assert_debug_snapshot!("container", container(&b.input("main")).unwrap());
}

#[test]
fn every_kind_of_container_has_a_cri_config() {
    let mut b = bench();
    let sidecar = container(&b.input("proxy")).unwrap();
    assert_eq!((sidecar.image.as_str(), sidecar.log_path.as_str()), ("proxy:v2", "proxy/3.log"));
    assert_eq!(sidecar.annotations[metadata::TERMINATION_GRACE], "45");
    b.target = Some("c-main".into());
    let debug = container(&b.input("debug")).unwrap();
    assert_eq!((debug.tty, debug.security.namespaces.target_id.as_str()), (true, "c-main"));
    assert_eq!(debug.security.namespaces.pid, NamespaceMode::Target);
    let error = container(&b.input("ghost")).unwrap_err();
    assert_eq!(
        (error.reason.as_str(), error.message.as_str()),
        ("CreateContainerConfigError", "container ghost not found")
    );
}

#[test]
fn the_hosts_file_of_a_container() {
    let b = bench();
    let file = |ips: &[IpAddr]| hosts_file(&b.pod, "main", ips, "cluster.local", "").unwrap();
    assert!(file(&[]).is_none());
    let text = file(&b.pod_ips).unwrap();
    assert!(text.contains("\n10.1.0.5\tshop-front.web.shop.svc.cluster.local\tshop-front\n"), "{text}");
    assert!(text.ends_with("10.9.9.9\tdb\n"));
}

#[test]
fn host_network_pods_keep_the_nodes_name() {
    let b = Bench::new(pod("{hostNetwork: true, setHostnameAsFQDN: true, containers: []}"));
    let cri_config = sandbox(&b.sandbox_input()).unwrap();
    assert_eq!(
        (cri_config.hostname.as_str(), cri_config.security.namespaces.network),
        ("", NamespaceMode::Node)
    );
}

#[test]
fn a_sandbox_that_cannot_be_configured_says_so() {
    let b = Bench::new(pod("{hostname: Bad, containers: []}"));
    let error = sandbox(&b.sandbox_input()).unwrap_err();
    assert_eq!(error.reason, CriConfigReason::CreatePodSandboxError);
    assert_eq!(error.message, "pod Hostname \"Bad\" is not a valid DNS label");
}

#[test]
fn a_command_of_many_references_is_refused_and_the_word_named() {
    // One level is enough: a value of half a megabyte, referred to ten thousand times.
    let mut b = bench();
    let main = &mut b.pod.spec.as_mut().unwrap().containers[0];
    main.env.as_mut().unwrap().push(k8s_openapi::api::core::v1::EnvVar {
        name: "BIG".into(),
        value: Some("x".repeat(500_000)),
        value_from: None,
    });
    for (command, args, want) in [
        (1, 0, None),
        (10_000, 0, Some("command[0] is too long: ")),
        (1, 10_000, Some("args[0] is too long: ")),
        (7, 7, Some("args[0] is too long: ")),
    ] {
        let main = &mut b.pod.spec.as_mut().unwrap().containers[0];
        main.command = Some(vec!["$(BIG)".repeat(command)]);
        main.args = Some(vec!["$(BIG)".repeat(args)]);
        let said = container(&b.input("main")).map(drop).map_err(|e| e.message);
        match want {
            None => assert_eq!(said, Ok(())),
            Some(begin) => assert!(said.as_ref().is_err_and(|e| e.starts_with(begin)), "{said:?}"),
        }
    }
}
