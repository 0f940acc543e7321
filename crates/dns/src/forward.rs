//! Upstreams: whom to ask, how it is asked, and who is down.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dns_core::corefile::{Forward, Policy};
use dns_core::message::{self, Answer};
use dns_core::name::Name;
use dns_core::query::Query;
use dns_core::{Rcode, Rtype};
use supervise::Supervisor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

use crate::metrics::Metrics;

/// For one upstream to answer, to a check, and for all of them together.
const READ: Duration = Duration::from_secs(2);
const CHECK: Duration = Duration::from_secs(1);
const ALL: Duration = Duration::from_secs(5);
/// What no path cuts into pieces.
const DATAGRAM: u16 = 1232;
/// Of questions whose Corefile sets no limit.
const MOST: usize = 10_000;

/// The upstreams of one `forward`.
#[derive(Debug)]
pub(crate) struct Group {
    plan: Forward,
    upstreams: Vec<Arc<Upstream>>,
    turn: AtomicUsize,
    active: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    fails: AtomicU32,
    is_checked: AtomicBool,
}

/// Numbers that a stranger cannot guess: a keyed hash of a count.
#[derive(Debug, Default)]
pub(crate) struct Chance(RandomState, AtomicU64);

/// What asking needs besides the question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means<'a> {
    pub(crate) chance: &'a Chance,
    pub(crate) metrics: &'a Arc<Metrics>,
    pub(crate) tasks: &'a Supervisor,
    /// The client came over TCP, and so do we.
    pub(crate) over_tcp: bool,
}

/// One of the questions under way.
struct Active<'a>(&'a AtomicUsize);

// === impl Group ===

impl Group {
    pub(crate) fn new(plan: Forward, to: &[SocketAddr]) -> Group {
        let upstream = |address: &SocketAddr| {
            Arc::new(Upstream {
                address: *address,
                fails: AtomicU32::new(0),
                is_checked: AtomicBool::new(false),
            })
        };
        let upstreams = to.iter().map(upstream).collect();
        Group { plan, upstreams, turn: AtomicUsize::new(0), active: AtomicUsize::new(0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.upstreams.is_empty()
    }

    /// Asks until one answers. The code is ours where nobody did: it is for this client, and to be kept for nobody else.
    pub(crate) async fn ask(&self, query: &Query, means: Means<'_>) -> Result<Answer, Rcode> {
        let Some(_active) = Active::enter(&self.active, self.plan.max_concurrent.unwrap_or(MOST)) else {
            means.metrics.rejects.inc([]);
            return Err(Rcode::REFUSED);
        };
        let end = Instant::now() + ALL;
        for upstream in self.order(means) {
            let began = Instant::now();
            let over_tcp = means.over_tcp || self.plan.forces_tcp;
            let asking = upstream.exchange(query, over_tcp, means.chance);
            let said = timeout_at(end.min(began + READ), asking).await;
            let to = upstream.address.to_string();
            match said.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(answer) => {
                    let labels = ["forward", &to, &answer.rcode.to_string()];
                    means.metrics.upstream_duration.observe_duration(labels, began.elapsed());
                    upstream.fails.store(0, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => {
                    tracing::debug!(upstream = to, %error, "upstream did not answer");
                    upstream.suspect(self.plan.health_check, means);
                }
            }
            if Instant::now() >= end {
                break;
            }
        }
        Err(Rcode::SERVFAIL)
    }

    /// Those that are up in the policy's order; if none is, any of them: perhaps only the checks fail.
    fn order(&self, means: Means<'_>) -> Vec<Arc<Upstream>> {
        let mut all: Vec<_> = self.upstreams.clone();
        if all.is_empty() {
            return all;
        }
        let first = match self.plan.policy {
            Policy::Sequential => 0,
            Policy::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed) % all.len(),
            Policy::Random => means.chance.below(all.len()),
        };
        all.rotate_left(first);
        let up: Vec<_> = all.iter().filter(|one| !one.is_down(self.plan.max_fails)).cloned().collect();
        if up.is_empty() {
            means.metrics.broken.inc([]);
            all.truncate(1);
            return all;
        }
        up
    }
}

// === impl Upstream ===

impl Upstream {
    fn is_down(&self, max_fails: u32) -> bool {
        max_fails > 0 && self.fails.load(Ordering::Relaxed) >= max_fails
    }

    /// Looks until it is back: one look-out for each upstream. Only what the look-out sees counts: a client may ask for names
    /// that no upstream can answer in time, and a descriptor may be missing here.
    fn suspect(self: &Arc<Self>, period: Duration, means: Means<'_>) {
        if !self.is_checked.swap(true, Ordering::Relaxed) {
            let (upstream, metrics) = (Arc::downgrade(self), means.metrics.clone());
            means.tasks.once("upstream health", check(upstream, period, metrics));
        }
    }

    async fn exchange(&self, query: &Query, over_tcp: bool, chance: &Chance) -> io::Result<Answer> {
        let id = chance.id();
        let bytes = message::ask(query, id, &query.name, DATAGRAM);
        let is_meant = |heard: &message::Heard| {
            let asked = heard.question.as_ref();
            heard.id == id && asked.is_some_and(|(name, rtype)| *name == query.name && *rtype == query.rtype)
        };
        if over_tcp {
            let heard = message::hear(&self.exchange_tcp(&bytes).await?).map_err(io::Error::other)?;
            return match is_meant(&heard) {
                true => Ok(heard.answer),
                false => Err(io::Error::other("an answer to another question")),
            };
        }
        // A socket for each question: its port is one more thing that a stranger has to guess.
        let local = match self.address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(local).await?;
        socket.connect(self.address).await?;
        socket.send(&bytes).await?;
        let mut buffer = [0; 4096];
        loop {
            let size = socket.recv(&mut buffer).await?;
            match message::hear(&buffer[..size]) {
                Ok(heard) if is_meant(&heard) => return Ok(heard.answer),
                // Somebody else's, or a guess: the real one may still come.
                _ => continue,
            }
        }
    }

    async fn exchange_tcp(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address).await?;
        let size = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        stream.write_all(&[&size.to_be_bytes(), bytes].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }
}

/// Asks for the root's name servers until somebody answers; whatever he says, he is there.
async fn check(upstream: Weak<Upstream>, period: Duration, metrics: Arc<Metrics>) {
    let chance = Chance::default();
    loop {
        tokio::time::sleep(period).await;
        // Another Corefile has come.
        let Some(upstream) = upstream.upgrade() else { return };
        let root = question(Name::root(), Rtype::NS);
        let asking = upstream.exchange(&root, false, &chance);
        if timeout(CHECK, asking).await.is_ok_and(|said| said.is_ok()) {
            upstream.fails.store(0, Ordering::Relaxed);
            upstream.is_checked.store(false, Ordering::Relaxed);
            return;
        }
        upstream.fails.fetch_add(1, Ordering::Relaxed);
        metrics.health_failures.inc(["forward", &upstream.address.to_string()]);
    }
}

/// A question of our own.
pub(crate) fn question(name: Name, rtype: Rtype) -> Query {
    Query {
        id: 0,
        wants_recursion: true,
        checking_disabled: false,
        name,
        rtype,
        class: dns_core::Class::IN,
        edns: None,
    }
}

// === impl Chance ===

impl Chance {
    pub(crate) fn next(&self) -> u64 {
        self.0.hash_one(self.1.fetch_add(1, Ordering::Relaxed))
    }

    fn id(&self) -> u16 {
        u16::try_from(self.next() & 0xffff).unwrap_or_default()
    }

    fn below(&self, most: usize) -> usize {
        usize::try_from(self.next() % most.max(1) as u64).unwrap_or_default()
    }
}

// === impl Active ===

impl<'a> Active<'a> {
    fn enter(count: &'a AtomicUsize, most: usize) -> Option<Active<'a>> {
        let more = |now: usize| (now < most).then_some(now + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Active(count))
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_cannot_make_an_upstream_look_dead() {
        let upstream = Arc::new(Upstream {
            address: "127.0.0.1:9".parse().unwrap(),
            fails: AtomicU32::new(0),
            is_checked: AtomicBool::new(false),
        });
        let (chance, metrics) = (Chance::default(), Arc::new(Metrics::new("v0")));
        let tasks = Supervisor::new(CancellationToken::new());
        let means = Means { chance: &chance, metrics: &metrics, tasks: &tasks, over_tcp: false };
        // Names that nobody answers in time.
        (0..100).for_each(|_| upstream.suspect(Duration::from_millis(500), means));
        assert!(!upstream.is_down(2));
        // Nobody listens there: the look-out finds that by itself.
        let end = Instant::now() + Duration::from_secs(60);
        while !upstream.is_down(2) {
            assert!(Instant::now() < end, "nobody looked");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
