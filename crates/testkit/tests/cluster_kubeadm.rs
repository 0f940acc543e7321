//! What `kubeadm join` leaves on a machine, and the drop-in we ship, start a kubelet that becomes a node.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use k8s_openapi::api::core::v1::Node;
use testkit::cluster::{Cluster, ClusterOptions, Identity};
use testkit::harness::is_ready;

/// config.yaml as kubeadm writes it: what it has no opinion on is zero, not absent.
const CONFIG: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous: { enabled: false }
  webhook: { cacheTTL: 0s, enabled: true }
  x509: { clientCAFile: /etc/kubernetes/pki/ca.crt }
authorization:
  mode: Webhook
  webhook: { cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s }
cgroupDriver: cgroupfs
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ENDPOINT
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options: { json: { infoBufferSize: '0' }, text: { infoBufferSize: '0' } }
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";

/// A machine that is a directory: whatever names one of its places is led there.
struct Machine(PathBuf);

impl Machine {
    fn led(&self, text: &str) -> String {
        ["/etc/kubernetes", "/etc/default", "/var/lib/kubelet"]
            .iter()
            .fold(text.to_owned(), |text, place| text.replace(place, &format!("{}{place}", self.0.display())))
    }

    fn write(&self, path: &str, text: &str) {
        let file = PathBuf::from(self.led(path));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, self.led(text)).unwrap();
    }

    /// What systemd would run: variables of the drop-in, then of the files it names, in the words of ExecStart.
    fn command(&self, drop_in: &str) -> Vec<String> {
        let (mut variables, mut command) = (BTreeMap::new(), String::new());
        let mut set = |assignment: &str| {
            let (name, value) = assignment.split_once('=').unwrap();
            variables.insert(format!("${name}"), value.trim_matches('"').to_owned());
        };
        // The files are led where they are written, and are not led again.
        for line in self.led(drop_in).lines() {
            if let Some(assignment) = line.strip_prefix("Environment=") {
                set(assignment.trim_matches('"'));
            } else if let Some(file) = line.strip_prefix("EnvironmentFile=-") {
                fs::read_to_string(file).unwrap_or_default().lines().for_each(&mut set);
            } else if let Some(line) = line.strip_prefix("ExecStart=") {
                command = line.to_owned();
            }
        }
        let expand = |word: &str| variables.get(word).cloned().unwrap_or_else(|| word.to_owned());
        let words = command.split(' ').map(expand).collect::<Vec<_>>().join(" ");
        words.split_whitespace().map(str::to_owned).collect()
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(c: &Cluster, machine: &Machine) -> Running {
    let drop_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/10-kubeadm.conf");
    let words = machine.command(&fs::read_to_string(drop_in).unwrap());
    let (program, arguments) = words.split_first().unwrap();
    assert_eq!(program, "/usr/bin/kubelet");
    // Under the name that the unit starts.
    let kubelet = machine.0.join("kubelet");
    if !kubelet.exists() {
        std::os::unix::fs::symlink(c.binary(), &kubelet).unwrap();
    }
    let log = fs::File::options().create(true).append(true).open(c.agent.log()).unwrap();
    let mut command = c.node.command(&kubelet);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

fn wait_ready(c: &Cluster) {
    c.eventually("joined", || {
        let node: Node = c.object(&["node", "joined"])?;
        let conditions = node.status?.conditions?;
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True").then_some(())
    });
}

#[test]
fn the_files_of_kubeadm_make_a_node() {
    let options = ClusterOptions { identity: Identity::Token, ..ClusterOptions::default() };
    let Some(mut c) = Cluster::start(options) else { return };
    c.agent.stop().unwrap();
    let machine = Machine(c.node.dir().join("machine"));
    let authority = fs::read_to_string(c.server.dir().join("pki/ca.crt")).unwrap();
    let bootstrap = fs::read_to_string(c.node.dir().join("bootstrap.kubeconfig")).unwrap();
    machine.write("/etc/kubernetes/pki/ca.crt", &authority);
    machine.write("/etc/kubernetes/bootstrap-kubelet.conf", &bootstrap);
    fs::create_dir_all(machine.led("/etc/kubernetes/manifests")).unwrap();
    // What kubeadm would not write, as `--patches` adds it: logs stay off this machine's own, and how full its disk is
    // is not this test's matter.
    let config = format!(
        "{}podLogsDir: /var/lib/kubelet/pod-logs\nimageGCHighThresholdPercent: 100\n\
         evictionHard: {{ nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0% }}\n",
        CONFIG.replace("ENDPOINT", &c.node.endpoint())
    );
    machine.write("/var/lib/kubelet/config.yaml", &config);
    machine.write(
        "/var/lib/kubelet/kubeadm-flags.env",
        "KUBELET_KUBEADM_ARGS=\"--hostname-override=joined --register-with-taints=team=blue:NoSchedule\"\n",
    );
    // What the test adds is added where people add it: this machine's root is not the kubelet's to use.
    let extra = format!(
        "KUBELET_EXTRA_ARGS=--root-dir=/var/lib/kubelet --cert-dir=/var/lib/kubelet/pki --node-ip={} --cgroup-root=/{} \
         --fail-swap-on=false --fail-cgroupv1=false\n",
        c.node.address(),
        c.node.cgroup(),
    );
    machine.write("/etc/default/kubelet", &extra);

    let kubelet = start(&c, &machine);
    wait_ready(&c);
    let own = fs::read_to_string(machine.led("/etc/kubernetes/kubelet.conf")).unwrap();
    assert!(own.contains("kubelet-client-current.pem"), "{own}");
    c.create(
        "apiVersion: v1\nkind: Pod\nmetadata: { name: web }\nspec: { nodeName: joined, \
         tolerations: [{ operator: Exists }], containers: [{ name: main, image: localhost/busybox:v1, \
         imagePullPolicy: Never, command: [sleep, '1000'] }] }\n",
    );
    let id = |c: &Cluster| {
        let status = c.wait_pod("web", "ready", is_ready).status.unwrap();
        status.container_statuses.unwrap()[0].container_id.clone()
    };
    let begun = id(&c);
    // kubeadm removes the token's file when the node is there; a restart needs it no more.
    fs::remove_file(machine.led("/etc/kubernetes/bootstrap-kubelet.conf")).unwrap();
    drop(kubelet);
    let _again = start(&c, &machine);
    c.run(&["annotate", "pod", "web", "seen=again"]);
    c.eventually("at work again", || {
        let answer = c.kubectl(&["exec", "web", "--", "echo", "here"]);
        (answer.out == "here\n").then_some(())
    });
    assert_eq!(id(&c), begun);
    c.run(&["delete", "pod", "web", "--grace-period=1", "--timeout=60s"]);
}
