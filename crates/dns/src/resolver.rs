//! From a question to its answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use base::time::Mono;
use dns_core::cache::Sort;
use dns_core::lookup::{self, Found, Scene};
use dns_core::message::{self, Answer, TCP_SIZE};
use dns_core::name::{self, Name};
use dns_core::query::{self, Query, Read};
use dns_core::zone::Zone;
use dns_core::{Rcode, route};
use ipnet::IpNet;
use supervise::Supervisor;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::forward::{Chance, Means};
use crate::live::{Live, Place};
use crate::metrics::{Metrics, SERVER};

/// How a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    Udp,
    Tcp,
}

/// What became of a client's bytes.
#[derive(Debug)]
pub(crate) enum Looked {
    /// Nothing to say.
    Nothing,
    Reply(Vec<u8>),
    /// Others have to be asked.
    Outside(Box<Outside>),
}

/// A question that others have to be asked about.
#[derive(Debug)]
pub(crate) struct Outside {
    asked: Asked,
    live: Arc<Live>,
    /// The name to ask for.
    query: Query,
    then: Then,
}

/// The client's own question, and how it came.
#[derive(Debug)]
struct Asked {
    query: Query,
    proto: Proto,
    peer: SocketAddr,
    began: Instant,
}

/// What is done with what others say.
#[derive(Debug)]
enum Then {
    /// It is the answer; this one if there is nobody to ask.
    Pass(Answer),
    /// It belongs behind these aliases.
    Append(Answer),
}

enum Local {
    Answer(Answer, &'static str),
    Outside(Query, Then),
}

#[derive(Debug)]
pub(crate) struct Resolver {
    zone: RwLock<Zone>,
    live: watch::Receiver<Option<Arc<Live>>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Supervisor,
    pub(crate) chance: Chance,
    own: Vec<IpAddr>,
    /// Empty for everybody.
    clients: watch::Receiver<Vec<IpNet>>,
    began: Instant,
}

// === impl Resolver ===

impl Resolver {
    pub(crate) fn new(
        live: watch::Receiver<Option<Arc<Live>>>,
        metrics: Arc<Metrics>,
        tasks: Supervisor,
        own: Vec<SocketAddr>,
        clients: watch::Receiver<Vec<IpNet>>,
    ) -> Arc<Resolver> {
        let own = own.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()).collect();
        let (zone, chance, began) = (RwLock::default(), Chance::default(), Instant::now());
        Arc::new(Resolver { zone, live, metrics, tasks, chance, own, clients, began })
    }

    pub(crate) fn zone(&self) -> RwLockReadGuard<'_, Zone> {
        self.zone.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn zone_mut(&self) -> RwLockWriteGuard<'_, Zone> {
        self.zone.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live(&self) -> watch::Receiver<Option<Arc<Live>>> {
        self.live.clone()
    }

    /// Whether names can be denied: who is not ready is asked by nobody.
    pub(crate) fn is_ready(&self) -> bool {
        let Some(live) = self.live.borrow().clone() else { return false };
        let zone = self.zone();
        live.plugins().all(|plugin| Scene { zone: &zone, plugin, own: &[] }.is_ready())
    }

    /// Answers at once what can be answered at once.
    pub(crate) fn look(&self, bytes: &[u8], proto: Proto, peer: SocketAddr) -> Looked {
        // Not even a refusal: its receiver may be somebody who never asked.
        if !self.is_client(peer.ip()) {
            self.metrics.dropped.inc([]);
            return Looked::Nothing;
        }
        let query = match query::read(bytes) {
            Read::Query(query) => query,
            Read::Refused(reply) => return Looked::Reply(reply),
            Read::Ignored => return Looked::Nothing,
        };
        let asked = Asked { query, proto, peer, began: Instant::now() };
        if let Some(answer) = route::refusal(&asked.query) {
            return Looked::Reply(self.finish(&asked, answer, None, ""));
        }
        let Some(live) = self.live.borrow().clone() else {
            return Looked::Reply(self.finish(&asked, Answer::new(Rcode::SERVFAIL), None, ""));
        };
        let Some(place) = live.place(&asked.query.name) else {
            return Looked::Reply(self.finish(&asked, Answer::new(Rcode::REFUSED), None, ""));
        };
        if live.is_probe(&asked.query) {
            return Looked::Reply(self.finish(&asked, self.looped(&live), Some(place), "loop"));
        }
        let renamed = place.server.rewrite.iter().find_map(|rule| rule.apply(&asked.query.name));
        let query = renamed.map_or_else(|| asked.query.clone(), |name| asked.query.about(name));
        match self.local(&place, query) {
            Local::Answer(answer, plugin) => Looked::Reply(self.finish(&asked, answer, Some(place), plugin)),
            Local::Outside(query, then) => {
                Looked::Outside(Box::new(Outside { asked, live: live.clone(), query, then }))
            }
        }
    }

    fn is_client(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let clients = self.clients.borrow();
        clients.is_empty() || clients.iter().any(|net| net.contains(&ip))
    }

    /// Asks others, and makes the reply.
    pub(crate) async fn ask(&self, outside: Outside) -> Vec<u8> {
        let Outside { asked, live, query, then } = outside;
        let heard = self.outside(&live, &query, asked.proto).await;
        let answer = match then {
            Then::Pass(otherwise) => heard.unwrap_or(otherwise),
            // An alias stands, whatever is behind it.
            Then::Append(mut answer) => {
                answer.answer.extend(heard.into_iter().flat_map(|heard| heard.answer));
                answer
            }
        };
        self.finish(&asked, answer, live.place(&asked.query.name), "forward")
    }

    /// `hosts`, then `kubernetes`: CoreDNS's order.
    fn local(&self, place: &Place<'_>, query: Query) -> Local {
        if let (Some(plugin), Some(table)) = (&place.server.hosts, &place.part.hosts)
            && let Some(answer) = table.answer(plugin, &query)
        {
            return Local::Answer(answer, "hosts");
        }
        let nobody = Answer::new(Rcode::SERVFAIL);
        let Some(plugin) = &place.server.kubernetes else { return Local::Outside(query, Then::Pass(nobody)) };
        let found = lookup::answer(&Scene { zone: &self.zone(), plugin, own: &self.own }, &query);
        match found {
            Found::Answer(answer) => Local::Answer(answer, "kubernetes"),
            Found::Chase(answer, target) => Local::Outside(query.about(target), Then::Append(answer)),
            Found::Fallthrough(answer) => Local::Outside(query, Then::Pass(answer)),
            Found::NotOurs => Local::Outside(query, Then::Pass(nobody)),
        }
    }

    /// What the upstreams say, or said; none if there are none.
    async fn outside(&self, live: &Live, query: &Query, proto: Proto) -> Option<Answer> {
        let place = live.place(&query.name)?;
        let hosts = place.server.hosts.as_ref().zip(place.part.hosts.as_ref());
        if let Some(answer) = hosts.and_then(|(plugin, table)| table.answer(plugin, query)) {
            return Some(answer);
        }
        let (at, _) = route::forward(place.server, &query.name)?;
        let group = place.part.groups.get(at).filter(|group| !group.is_empty())?;
        if live.is_looped() {
            return Some(Answer::new(Rcode::SERVFAIL));
        }
        if let Some(answer) = self.remembered(&place, query) {
            return Some(answer);
        }
        let over_tcp = proto == Proto::Tcp;
        let (chance, metrics, tasks) = (&self.chance, &self.metrics, &self.tasks);
        match group.ask(query, Means { chance, metrics, tasks, over_tcp }).await {
            Ok(mut answer) => {
                self.remember(&place, query, &mut answer);
                Some(answer)
            }
            Err(rcode) => Some(Answer::new(rcode)),
        }
    }

    fn remembered(&self, place: &Place<'_>, query: &Query) -> Option<Answer> {
        let cache = place.part.cache.as_ref()?;
        let zone = name::text(place.zone);
        self.metrics.cache_requests.inc([SERVER, &zone, ""]);
        let (answer, sort) = lock(cache).get(query, self.now())?;
        self.metrics.cache_hits.inc([SERVER, sort_label(sort), &zone, ""]);
        Some(answer)
    }

    fn remember(&self, place: &Place<'_>, query: &Query, answer: &mut Answer) {
        let Some(cache) = &place.part.cache else { return };
        let zone = name::text(place.zone);
        let mut cache = lock(cache);
        cache.put(query, answer, self.now());
        for sort in [Sort::Success, Sort::Denial] {
            let count = u32::try_from(cache.len(sort)).unwrap_or(u32::MAX);
            self.metrics.cache_entries.set([SERVER, sort_label(sort), &zone, ""], count.into());
        }
    }

    /// Our own question came back to us. CoreDNS ends here; we stop forwarding and go on with the cluster's names.
    fn looped(&self, live: &Live) -> Answer {
        if !live.has_looped.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "an upstream sends our questions back to us: nothing is forwarded until the Corefile or the files it names change"
            );
        }
        Answer::new(Rcode::SERVFAIL)
    }

    fn finish(&self, asked: &Asked, mut answer: Answer, place: Option<Place<'_>>, plugin: &str) -> Vec<u8> {
        let (query, server) = (&asked.query, place.map(|place| place.server));
        if let Some(server) = server {
            rename(&mut answer, server, &query.name);
        }
        if server.is_some_and(|server| server.shuffles) {
            answer.shuffle(self.chance.next());
        }
        let limit = match asked.proto {
            Proto::Tcp => TCP_SIZE,
            Proto::Udp => {
                let most = server.and_then(|server| server.bufsize).map_or(usize::MAX, usize::from);
                query.udp_size().min(most)
            }
        };
        let bytes = answer.write(query, limit);
        self.count(asked, &answer, place, plugin, bytes.len());
        bytes
    }

    fn count(&self, asked: &Asked, answer: &Answer, place: Option<Place<'_>>, plugin: &str, size: usize) {
        let (query, metrics) = (&asked.query, &self.metrics);
        let zone = place.map_or_else(|| "dropped".to_owned(), |place| name::text(place.zone));
        let proto = if asked.proto == Proto::Tcp { "tcp" } else { "udp" };
        let family = if asked.peer.is_ipv4() { "1" } else { "2" };
        // Types that nobody knows are one: their number is the client's choice.
        let rtype = query.rtype.to_string();
        let known = if rtype.starts_with("TYPE") { "other" } else { rtype.as_str() };
        let took = asked.began.elapsed();
        let wanted = if asked.proto == Proto::Tcp { TCP_SIZE } else { query.udp_size() };
        metrics.requests.inc([SERVER, &zone, "", proto, family, known]);
        metrics.responses.inc([SERVER, &zone, "", &answer.rcode.to_string(), plugin]);
        metrics.duration.observe_duration([SERVER, &zone, ""], took);
        let bytes = |size: usize| f64::from(u32::try_from(size).unwrap_or(u32::MAX));
        metrics.request_size.observe([SERVER, &zone, "", proto], bytes(wanted));
        metrics.response_size.observe([SERVER, &zone, "", proto], bytes(size));
        if place.is_some_and(|place| place.server.logs_queries) {
            let (name, rcode) = (name::text(&query.name), answer.rcode);
            tracing::info!(peer = %asked.peer, %rtype, name, proto, %rcode, size, ?took, "query");
        }
        if place.is_some_and(|place| place.server.logs_errors) && answer.rcode == Rcode::SERVFAIL {
            tracing::warn!(name = name::text(&query.name), %rtype, plugin, "question could not be answered");
        }
    }

    fn now(&self) -> Mono {
        Mono(self.began.elapsed())
    }
}

/// Answers come under the name that was asked.
fn rename(answer: &mut Answer, server: &dns_core::corefile::Server, asked: &Name) {
    let Some(renamed) = server.rewrite.iter().find_map(|rule| rule.apply(asked)) else { return };
    for record in answer.answer.iter_mut().filter(|record| *record.owner() == renamed) {
        *record = message::renamed(record, asked);
    }
}

fn sort_label(sort: Sort) -> &'static str {
    match sort {
        Sort::Success => "success",
        Sort::Denial => "denial",
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
