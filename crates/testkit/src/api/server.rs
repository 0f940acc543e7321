//! Starting an API server and asking the kernel what it weighs.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;

use super::{Client, Credentials, Outcome};

const TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN: &str = "benchmark-token";
const NODE_TOKEN: &str = "benchmark-node-token";

/// Upstream's programs.
#[derive(Clone, Debug)]
pub struct Peer {
    pub apiserver: PathBuf,
    pub etcd: PathBuf,
}

/// A running server, and what it stores in. Ends with the value.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub credentials: Credentials,
    /// From the start of the process to the first time it said it is ready.
    pub started_in: Duration,
    processes: Vec<Process>,
}

/// A program that ends with the value.
#[derive(Debug)]
pub struct Process(Child);

// === impl Server ===

impl Server {
    /// `longshore apiserver` with an empty data directory.
    pub async fn ours(binary: &Path, dir: &Path) -> Outcome<Server> {
        let address = free_address()?;
        let data = dir.join("data");
        let begun = Instant::now();
        let process = Process::start(
            Command::new(binary)
                .arg("apiserver")
                .arg("--bind-address=127.0.0.1")
                .arg(format!("--secure-port={}", address.port()))
                .arg(format!("--data-dir={}", data.display())),
            &dir.join("longshore.log"),
        )?;
        let kubeconfig = data.join("admin.kubeconfig");
        let credentials = || Credentials::from_kubeconfig(&kubeconfig);
        Server::wait(address, credentials, begun, vec![process]).await
    }

    /// kube-apiserver with an empty etcd.
    pub async fn upstream(peer: &Peer, dir: &Path) -> Outcome<Server> {
        let (client, cluster) = (free_address()?, free_address()?);
        let etcd = Process::start(
            Command::new(&peer.etcd)
                .arg(format!("--data-dir={}", dir.join("etcd").display()))
                .arg(format!("--listen-client-urls=http://{client}"))
                .arg(format!("--advertise-client-urls=http://{client}"))
                .arg(format!("--listen-peer-urls=http://{cluster}"))
                .arg(format!("--initial-advertise-peer-urls=http://{cluster}"))
                .arg(format!("--initial-cluster=default=http://{cluster}")),
            &dir.join("etcd.log"),
        )?;
        wait_for_port(client).await?;
        let address = free_address()?;
        let (certs, tokens) = (dir.join("certs"), dir.join("tokens.csv"));
        let (key, public) = (dir.join("sa.key"), dir.join("sa.pub"));
        let admin = format!("{TOKEN},admin,admin,system:masters\n");
        fs::write(&tokens, admin + &format!("{NODE_TOKEN},system:node:demo,node,system:nodes\n"))?;
        let pair = rcgen::KeyPair::generate()?;
        fs::write(&key, pair.serialize_pem())?;
        fs::write(&public, pair.public_key_pem())?;
        let begun = Instant::now();
        let apiserver = Process::start(
            Command::new(&peer.apiserver)
                .arg(format!("--etcd-servers=http://{client}"))
                .arg("--bind-address=127.0.0.1")
                .arg("--advertise-address=127.0.0.1")
                .arg(format!("--secure-port={}", address.port()))
                .arg(format!("--cert-dir={}", certs.display()))
                .arg(format!("--token-auth-file={}", tokens.display()))
                .arg("--service-account-issuer=https://kubernetes.default.svc")
                .arg(format!("--service-account-key-file={}", public.display()))
                .arg(format!("--service-account-signing-key-file={}", key.display()))
                .arg("--service-cluster-ip-range=10.0.0.0/16")
                .arg("--authorization-mode=Node,RBAC"),
            &dir.join("kube-apiserver.log"),
        )?;
        let credentials = || Credentials::from_token(&certs.join("apiserver.crt"), TOKEN);
        Server::wait(address, credentials, begun, vec![apiserver, etcd]).await
    }

    /// What the node `demo` finds upstream's server with; `dir` is where that was started.
    pub fn node_kubeconfig(&self, dir: &Path) -> Outcome<PathBuf> {
        self.token_kubeconfig(dir, "node", NODE_TOKEN)
    }

    /// The same for who may do everything.
    pub fn admin_kubeconfig(&self, dir: &Path) -> Outcome<PathBuf> {
        self.token_kubeconfig(dir, "admin", TOKEN)
    }

    fn token_kubeconfig(&self, dir: &Path, user: &str, token: &str) -> Outcome<PathBuf> {
        let path = dir.join(format!("{user}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {user}\n\
             clusters: [{{ name: c, cluster: {{ server: 'https://{}', certificate-authority: {} }} }}]\n\
             contexts: [{{ name: {user}, context: {{ cluster: c, user: {user} }} }}]\n\
             users: [{{ name: {user}, user: {{ token: {token} }} }}]\n",
            self.address,
            dir.join("certs/apiserver.crt").display(),
        );
        fs::write(&path, text)?;
        Ok(path)
    }

    pub async fn client(&self) -> Outcome<Client> {
        Client::connect(self.address, &self.credentials).await
    }

    /// Proportional set size of all its processes, in bytes.
    pub fn memory(&self) -> Outcome<u64> {
        self.processes.iter().map(Process::memory).sum()
    }

    /// What its processes have used of the processors.
    pub fn processor_time(&self) -> Outcome<Duration> {
        self.processes.iter().map(Process::processor_time).sum()
    }

    /// Asks until it is ready. The credentials appear while it starts.
    async fn wait(
        address: SocketAddr,
        credentials: impl Fn() -> Outcome<Credentials>,
        begun: Instant,
        mut processes: Vec<Process>,
    ) -> Outcome<Server> {
        let mut server = None;
        let mut last = String::new();
        while begun.elapsed() < TIMEOUT {
            let asked = async {
                let credentials = credentials()?;
                let client = Client::connect(address, &credentials).await?;
                let (status, body) = client.call(Method::GET, "/readyz", bytes::Bytes::new()).await?;
                if status.is_success() {
                    Ok(credentials)
                } else {
                    Err(format!("{status} {}", String::from_utf8_lossy(&body)).into())
                }
            };
            match asked.await as Outcome<Credentials> {
                Ok(credentials) => {
                    server = Some((credentials, begun.elapsed()));
                    break;
                }
                Err(error) => last = error.to_string(),
            }
            if processes.iter_mut().any(Process::has_ended) {
                return Err(format!("it ended before it was ready: {last}").into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (credentials, started_in) = server.ok_or_else(|| format!("not ready in time: {last}"))?;
        Ok(Server { address, credentials, started_in, processes })
    }
}

// === impl Process ===

impl Process {
    pub fn start(command: &mut Command, log: &Path) -> Outcome<Process> {
        let log = File::create(log)?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        Ok(Process(child.map_err(|e| format!("starting {}: {e}", command.get_program().display()))?))
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Proportional set size, in bytes.
    pub fn memory(&self) -> Outcome<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no Pss line")?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kilobytes * 1024)
    }

    /// What it has used of the processors.
    pub fn processor_time(&self) -> Outcome<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name of the program stands in parentheses and may hold anything; user and system time are the
        // twelfth and thirteenth field after it.
        let (_, fields) = text.rsplit_once(") ").ok_or("no name in stat")?;
        let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to tell anybody about it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where nobody listens at the moment.
pub fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

async fn wait_for_port(address: SocketAddr) -> Outcome<()> {
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        if begun.elapsed() > TIMEOUT {
            return Err(format!("nothing listens on {address}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
