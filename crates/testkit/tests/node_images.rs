//! Images as Pods need them: present, missing, pulled from a registry with and without a login.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use k8s_openapi::api::core::v1::Pod;
use testkit::harness::{Harness, container, is_ready, phase, waiting_reason};
use testkit::node::{AgentOptions, Containerd, Tools};

fn pod(name: &str, image: &str, policy: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, \
         containers: [{{name: main, image: {image:?}, imagePullPolicy: {policy}, args: [sleep, forever]}}]}}}}"
    )
}

fn events(h: &Harness, pod: &str) -> String {
    h.pods(&["get", &format!("{pod}-demo"), "-o", "wide"]).1
}

fn message(pod: &Pod) -> String {
    let state = container(pod, "main").and_then(|c| c.state.as_ref()).and_then(|s| s.waiting.as_ref());
    state.and_then(|w| w.message.clone()).unwrap_or_default()
}

/// A registry on the node's loopback, gone with it.
struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PLACE: &str = "127.0.0.1:5000";
/// `secret`, as the registry keeps it.
const PASSWORD: &str = "$2b$04$3add58NmV1KxBJxsHjSmjunGa58SbxD0IWx6H6yNWO3qdJHks7hEe";

fn registry(h: &Harness, with_login: bool) -> Registry {
    let tools = Tools::from_env().unwrap();
    let dir = h.node.dir().join("registry");
    fs::create_dir_all(&dir).unwrap();
    let at = dir.display();
    let login = match with_login {
        true => format!("auth: {{htpasswd: {{realm: test, path: {at}/htpasswd}}}}\n"),
        false => String::new(),
    };
    let config = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {at}/blobs}}}}\nhttp: {{addr: '{PLACE}'}}\n{login}"
    );
    fs::write(dir.join("config.yml"), config).unwrap();
    fs::write(dir.join("htpasswd"), format!("ann:{PASSWORD}\n")).unwrap();
    let hosts = h.node.registries().join(PLACE);
    fs::create_dir_all(&hosts).unwrap();
    fs::write(hosts.join("hosts.toml"), format!("server = \"http://{PLACE}\"\n")).unwrap();
    let mut command = h.node.command(tools.registry());
    let log = fs::File::create(dir.join("log")).unwrap();
    let child = command.arg("serve").arg(dir.join("config.yml")).stdout(Stdio::null()).stderr(log).spawn();
    let registry = Registry(child.unwrap());
    h.until("a registry", || h.node.inside(|| TcpStream::connect(PLACE).is_ok()).unwrap().then_some(()));
    registry
}

/// Puts the demo image into the registry under another name, and forgets it on the node.
fn push(h: &Harness, name: &str) {
    let target = format!("{PLACE}/{name}");
    let run = |args: &[&str]| {
        let out = h.node.ctr().args(args).output().unwrap();
        assert!(out.status.success(), "ctr {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    run(&["images", "tag", "localhost/demo:v1", &target]);
    run(&["images", "push", "--local", "--plain-http", "--user", "ann:secret", &target]);
    run(&["images", "rm", &target]);
}

#[test]
fn images_that_are_there_or_not() {
    let Some(h) = Harness::usual() else { return };
    let rows = [
        ("here", "localhost/demo:v1", "Never"),
        ("herealso", "localhost/demo:v1", "IfNotPresent"),
        ("never", "localhost/none:v1", "Never"),
        ("none", "127.0.0.1:1/none:v1", "IfNotPresent"),
        ("wrong", "Not A Name", "IfNotPresent"),
    ];
    rows.iter().for_each(|(name, image, policy)| h.apply(name, &pod(name, image, policy)));
    h.wait_ready("here");
    h.wait_ready("herealso");
    assert!(
        events(&h, "herealso").contains("Container image \"localhost/demo:v1\" already present on machine")
    );

    let never = h.wait("never", "refused", |p| waiting_reason(p, "main") == "ErrImageNeverPull");
    assert_eq!(phase(&never), "Pending");
    assert_eq!(
        message(&never),
        "Container image \"localhost/none:v1\" is not present with pull policy of Never"
    );
    let told = events(&h, "never");
    assert!(told.contains("ErrImageNeverPull") && told.contains("Error: ErrImageNeverPull"), "{told}");

    let wrong = h.wait("wrong", "refused", |p| waiting_reason(p, "main") == "InvalidImageName");
    assert!(
        message(&wrong).starts_with("Failed to apply default image tag \"Not A Name\": "),
        "{}",
        message(&wrong)
    );
    assert!(events(&h, "wrong").contains("InspectFailed"));

    let first = h.wait("none", "failed", |p| waiting_reason(p, "main") == "ErrImagePull");
    assert!(message(&first).contains("127.0.0.1:1"), "{}", message(&first));
    let later = h.wait("none", "backing off", |p| waiting_reason(p, "main") == "ImagePullBackOff");
    assert!(
        message(&later).starts_with("Back-off pulling image \"127.0.0.1:1/none:v1\": ErrImagePull: "),
        "{}",
        message(&later)
    );
    let told = events(&h, "none");
    for words in [
        "Pulling image \"127.0.0.1:1/none:v1\"",
        "Failed to pull image \"127.0.0.1:1/none:v1\": ",
        "Error: ErrImagePull",
        "Back-off pulling image",
        "Error: ImagePullBackOff",
    ] {
        assert!(told.contains(words), "{words} in {told}");
    }
    assert!(is_ready(&h.get("here").unwrap()), "a neighbour with a bad image harms nobody");
}

#[test]
fn an_open_registry_is_pulled_from() {
    let Some(h) = Harness::usual() else { return };
    let _registry = registry(&h, false);
    push(&h, "open/demo:v1");
    let image = format!("{PLACE}/open/demo:v1");
    h.apply("open", &pod("open", &image, "IfNotPresent"));
    let seen = h.wait_ready("open");
    assert!(container(&seen, "main").unwrap().image_id.contains("sha256:"));
    let told = events(&h, "open");
    assert!(told.contains(&format!("Pulling image \"{image}\"")), "{told}");
    assert!(told.contains(&format!("Successfully pulled image \"{image}\" in ")), "{told}");
    // Once more with Always: the registry is asked, the layers are there.
    h.apply("always", &pod("always", &image, "Always"));
    h.wait_ready("always");
    assert!(events(&h, "always").contains("Successfully pulled image"));
}

#[test]
fn a_login_from_the_nodes_file() {
    let Some(h) = Harness::usual() else { return };
    let _registry = registry(&h, true);
    push(&h, "closed/demo:v1");
    let image = format!("{PLACE}/closed/demo:v1");
    h.apply("closed", &pod("closed", &image, "IfNotPresent"));
    let refused = h.wait("closed", "refused", |p| waiting_reason(p, "main").contains("Image"));
    assert!(
        message(&refused).contains("authorization failed") || message(&refused).contains("401"),
        "{}",
        message(&refused)
    );
    // ann:secret; the file is read anew for the next attempt.
    let login = format!("{{\"auths\": {{\"http://{PLACE}\": {{\"auth\": \"YW5uOnNlY3JldA==\"}}}}}}");
    fs::write(h.agent.root().join("config.json"), login).unwrap();
    h.wait_ready("closed");
    assert!(!events(&h, "closed").contains("secret"));
    let log = fs::read_to_string(h.agent.log()).unwrap();
    assert!(!log.contains("YW5uOnNlY3JldA") && !log.contains("ann:secret"));
}

#[test]
fn a_login_from_a_program() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: giver\n  matchImages: ['{PLACE}']\n  defaultCacheDuration: 1m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  env: [{{name: PASS, value: secret}}]\n"
    );
    fs::write(at.join("providers.yaml"), config).unwrap();
    let script = format!(
        "#!/bin/sh\ncat >> {asked}\necho '{{\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"kind\":\"CredentialProviderResponse\",\"cacheKeyType\":\"Registry\",\"auth\":{{\"{PLACE}\":{{\"username\":\"ann\",\"password\":\"'$PASS'\"}}}}}}'\n",
        asked = at.join("asked").display()
    );
    let bin = at.join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("giver"), script).unwrap();
    fs::set_permissions(bin.join("giver"), fs::Permissions::from_mode(0o755)).unwrap();
    let flag = |name: &str, path: &Path| format!("--image-credential-provider-{name}={}", path.display());
    let flags = vec![flag("config", &at.join("providers.yaml")), flag("bin-dir", &bin)];
    let options = AgentOptions { flags, ..AgentOptions::default() };
    let Some(h) = Harness::start(Containerd::default(), options) else { return };
    let _registry = registry(&h, true);
    push(&h, "given/demo:v1");
    push(&h, "given/demo:v2");
    h.apply("given", &pod("given", &format!("{PLACE}/given/demo:v1"), "IfNotPresent"));
    h.wait_ready("given");
    h.apply("again", &pod("again", &format!("{PLACE}/given/demo:v2"), "IfNotPresent"));
    h.wait_ready("again");
    let asked = fs::read_to_string(at.join("asked")).unwrap();
    assert_eq!(asked.matches("CredentialProviderRequest").count(), 1, "asked once, then remembered: {asked}");
    assert!(asked.contains(&format!("{PLACE}/given/demo")), "{asked}");
}
