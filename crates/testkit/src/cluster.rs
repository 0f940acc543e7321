//! A cluster of one node: our API server, a private containerd, a kubelet that belongs to both, and kubectl.
//!
//! All of it lives in the node's network. There is no scheduler: Pods name their node (`nodeName: demo`), or are bound.
//! The kubelet shows a node's own certificate (`system:node:demo`), so that what it may do is what a node may do.

use std::fs;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
};
use serde::de::DeserializeOwned;

use crate::harness::{Harness, TIMEOUT, means};
use crate::node::{AgentOptions, ApiServer, Containerd, Kubectl, Node, Options};

/// A running cluster. Everything goes when it is dropped. What a [`Harness`] can do, it can do too.
#[derive(Debug)]
pub struct Cluster {
    pub server: ApiServer,
    harness: Harness,
    kubectl: PathBuf,
    binary: PathBuf,
    server_flags: Vec<String>,
}

/// What a cluster is made of, beyond the usual.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    pub containerd: Containerd,
    pub kubectl: Kubectl,
    pub agent: AgentOptions,
    /// Flags of the API server.
    pub server: Vec<String>,
    pub identity: Identity,
}

/// How the node shows who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// A certificate made for it.
    #[default]
    Certificate,
    /// A certificate that is nearly used up.
    OldCertificate,
    /// A bootstrap token, with which it asks for a certificate; what kubeadm grants is granted.
    Token,
}

/// The rights kubeadm gives to new nodes, and the token they come with.
const BOOTSTRAP: &str = "\
apiVersion: v1
kind: Secret
metadata: { name: bootstrap-token-abcdef, namespace: kube-system }
type: bootstrap.kubernetes.io/token
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: \"true\"
  auth-extra-groups: system:bootstrappers:test
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: test-bootstrap }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \"system:node-bootstrapper\" }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: \"system:bootstrappers:test\" }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: test-approve-new }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \"system:certificates.k8s.io:certificatesigningrequests:nodeclient\" }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: \"system:bootstrappers:test\" }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: test-approve-renewal }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient\" }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: \"system:nodes\" }]
";

/// What a command answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

// === impl Cluster ===

impl Cluster {
    /// On the current containerd, with the usual settings; none, with a word on stderr, where this machine cannot.
    #[must_use]
    pub fn usual() -> Option<Self> {
        Self::start(ClusterOptions::default())
    }

    /// The same with more lines of KubeletConfiguration.
    #[must_use]
    pub fn with_config(config: &str) -> Option<Self> {
        let agent = AgentOptions { config: config.to_owned(), ..AgentOptions::default() };
        Self::start(ClusterOptions { agent, ..ClusterOptions::default() })
    }

    #[must_use]
    pub fn start(options: ClusterOptions) -> Option<Self> {
        let (tools, binary) = means()?;
        let node = Node::start(&tools, Options { containerd: options.containerd, ..Options::default() })
            .unwrap_or_else(|e| panic!("{e}"));
        let server = start_server(&node, &binary, &options.server);
        let kubectl = tools.kubectl_of(options.kubectl);
        let mut agent = options.agent;
        if options.identity != Identity::Certificate {
            let admin = server.kubeconfig();
            let granted = ask(&node, &kubectl, &admin, &["apply", "-f", "-"], BOOTSTRAP);
            assert_eq!(granted.code, 0, "{granted:?}");
        }
        let own = node.dir().join("node.kubeconfig");
        if options.identity == Identity::Token {
            let bootstrap = token_kubeconfig(&server, &node.dir().join("bootstrap.kubeconfig"));
            agent.flags.push(format!("--bootstrap-kubeconfig={}", bootstrap.display()));
        } else {
            node_kubeconfig(&server, &own, options.identity == Identity::OldCertificate);
        }
        agent.flags.push(format!("--kubeconfig={}", own.display()));
        let registers = !agent.config.contains("registerNode: false");
        if !agent.config.contains("address:") {
            // Where the API server looks for it.
            agent.config.push_str("\naddress: 0.0.0.0\n");
        }
        let authority = server.dir().join("pki/ca.crt");
        agent.flags.push(format!("--client-ca-file={}", authority.display()));
        let harness = Harness::start_on(node, binary.clone(), agent);
        let cluster = Self { server, harness, kubectl, binary, server_flags: options.server };
        cluster.ensure_node(registers);
        Some(cluster)
    }

    #[must_use]
    pub fn kubectl_path(&self) -> &Path {
        &self.kubectl
    }

    /// kubectl, as the administrator.
    #[must_use]
    pub fn kubectl(&self, args: &[&str]) -> Answer {
        self.kubectl_with(args, "")
    }

    /// kubectl with something on its standard input.
    #[must_use]
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Answer {
        ask(&self.node, &self.kubectl, &self.server.kubeconfig(), args, input)
    }

    /// kubectl that has to succeed; its output.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        let answer = self.kubectl(args);
        assert_eq!(answer.code, 0, "kubectl {args:?}: {}{}", answer.out, answer.err);
        answer.out
    }

    /// `kubectl apply -f -`, which has to succeed.
    #[track_caller]
    pub fn create(&self, manifest: &str) {
        let answer = self.kubectl_with(&["apply", "-f", "-"], manifest);
        assert_eq!(answer.code, 0, "apply: {}{}\n{manifest}", answer.out, answer.err);
    }

    /// An object, if there is one.
    #[must_use]
    pub fn object<T: DeserializeOwned>(&self, args: &[&str]) -> Option<T> {
        let answer = self.kubectl(&[&["get", "-o", "json"], args].concat());
        if answer.code != 0 {
            assert!(answer.err.contains("NotFound"), "kubectl get {args:?}: {}", answer.err);
            return None;
        }
        Some(serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("kubectl get {args:?}: {e}")))
    }

    /// A Pod of the namespace `default`, as the API server has it.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<Pod> {
        self.object(&["pod", name])
    }

    /// Waits until the API server shows the Pod as wanted.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, what: &str, is: impl Fn(&Pod) -> bool) -> Pod {
        self.eventually(&format!("{name} {what}"), || self.pod(name).filter(|p| is(p)))
    }

    /// Waits until the API server has forgotten the Pod.
    #[track_caller]
    pub fn wait_pod_gone(&self, name: &str) {
        self.eventually(&format!("{name} gone"), || self.pod(name).is_none().then_some(()));
    }

    /// Asks until there is an answer; a test that gives up shows what everybody said.
    #[track_caller]
    pub fn eventually<T>(&self, what: &str, ask: impl Fn() -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            if Instant::now() > end {
                let pods = self.kubectl(&["get", "pods", "-A", "-o", "yaml"]).out;
                let events = self.kubectl(&["get", "events", "-A"]).out;
                let words = self.agent.last_words();
                panic!("not {what} in time.\n{pods}\n{events}\nThe kubelet says:\n{words}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The API server goes (`kill -9`) and does not come back by itself.
    pub fn stop_server(&mut self) {
        self.server.kill();
    }

    /// The API server is back, where it was.
    pub fn start_server(&mut self) {
        self.server = start_server(&self.harness.node, &self.binary, &self.server_flags);
    }

    /// A node that does not register itself is registered by us.
    fn ensure_node(&self, registers: bool) {
        if registers {
            let found = || (self.kubectl(&["get", "node", "demo"]).code == 0).then_some(());
            return self.eventually("registered", found);
        }
        let labels = "kubernetes.io/hostname: demo, kubernetes.io/os: linux";
        let node =
            format!("apiVersion: v1\nkind: Node\nmetadata: {{ name: demo, labels: {{ {labels} }} }}\n");
        let made = self.kubectl_with(&["create", "-f", "-"], &node);
        assert_eq!(made.code, 0, "{made:?}");
    }
}

impl Deref for Cluster {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Harness {
        &mut self.harness
    }
}

fn start_server(node: &Node, binary: &Path, flags: &[String]) -> ApiServer {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    ApiServer::start_on(node, binary, &flags).unwrap_or_else(|e| panic!("{e}"))
}

/// kubectl with this kubeconfig, in the node's network.
fn ask(node: &Node, kubectl: &Path, kubeconfig: &Path, args: &[&str], input: &str) -> Answer {
    let mut child = node
        .command(kubectl)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(args)
        .env("HOME", node.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("run kubectl: {e}"));
    if let Some(mut stdin) = child.stdin.take() {
        // A kubectl that does not read has its reasons; it will say so.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().unwrap_or_else(|e| panic!("wait for kubectl: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Answer { code: done.status.code().unwrap_or(-1), out: text(&done.stdout), err: text(&done.stderr) }
}

/// A kubeconfig with nothing but the bootstrap token.
fn token_kubeconfig(server: &ApiServer, path: &Path) -> PathBuf {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: b\n\
         clusters: [{{ name: c, cluster: {{ server: {}, certificate-authority: {} }} }}]\n\
         contexts: [{{ name: b, context: {{ cluster: c, user: b }} }}]\n\
         users: [{{ name: b, user: {{ token: abcdef.0123456789abcdef }} }}]\n",
        server.url(),
        server.dir().join("pki/ca.crt").display(),
    );
    fs::write(path, text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
    path.to_path_buf()
}

/// A kubeconfig for the node `demo`, with a certificate of the server's own authority; an old one is nearly used up.
pub fn node_kubeconfig(server: &ApiServer, path: &Path, old: bool) -> PathBuf {
    let pki = server.dir().join("pki");
    let read = |name: &str| {
        fs::read_to_string(pki.join(name)).unwrap_or_else(|e| panic!("read {name} of the API server: {e}"))
    };
    let (certificate, key) = sign("system:node:demo", "system:nodes", &read("ca.crt"), &read("ca.key"), old);
    let beside = |extension: &str, text: &str| {
        let file = path.with_extension(extension);
        fs::write(&file, text).unwrap_or_else(|e| panic!("write {}: {e}", file.display()));
        file.display().to_string()
    };
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: node\n\
         clusters: [{{ name: c, cluster: {{ server: {}, certificate-authority: {} }} }}]\n\
         contexts: [{{ name: node, context: {{ cluster: c, user: node }} }}]\n\
         users: [{{ name: node, user: {{ client-certificate: {}, client-key: {} }} }}]\n",
        server.url(),
        pki.join("ca.crt").display(),
        beside("crt", &certificate),
        beside("key", &key),
    );
    fs::write(path, text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
    path.to_path_buf()
}

/// A client certificate and its key; an old one has a twentieth of its life left.
fn sign(name: &str, group: &str, ca: &str, ca_key: &str, old: bool) -> (String, String) {
    let signed = || -> Result<(String, String), rcgen::Error> {
        let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(ca_key)?)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if old {
            let now = SystemTime::now();
            params.not_before = (now - Duration::from_secs(95 * 3600)).into();
            params.not_after = (now + Duration::from_secs(5 * 3600)).into();
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    };
    signed().unwrap_or_else(|e| panic!("sign a certificate for {name}: {e}"))
}
