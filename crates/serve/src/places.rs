//! Who may stay when there is no more room. Pure: time is an argument, and what is decided is for others to do.
//!
//! A newcomer takes a place in the pool of where it comes from. Who says who it is moves to the pool of those who are
//! known. Somebody makes way only for others of the same pool, so strangers cannot drive out those who are known,
//! whatever they do.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::time::Mono;

/// A newcomer is not asked to leave before those who were served and are idle until it had this long to say something.
const GRACE: Duration = Duration::from_secs(1);

/// Those who compete for the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    /// Strangers from elsewhere.
    Remote,
    /// Strangers from this machine.
    Local,
    /// Those who proved who they are, and those who can only be trusted ones.
    Known,
}

/// Where somebody comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A way that is open to nobody else, as a socket that belongs to root.
    Trusted,
    /// From this machine.
    Local(IpAddr),
    /// From elsewhere.
    Remote(IpAddr),
}

/// What makes a stranger more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// An answered request, where anybody may ask.
    Answer,
    /// Nothing but an identity.
    Identity,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub remote: usize,
    pub local: usize,
    pub known: usize,
    /// Strangers of one address.
    pub per_source: usize,
    /// Descriptors that one who is known may take: a stream has another end.
    pub known_takes: usize,
}

/// How long a connection is borne with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From the first packet to the end of the first request's head, handshakes included.
    pub first: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// For one request, where answers are short.
    pub busy: Option<Duration>,
}

/// Names a connection. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(crate) u64);

/// Why somebody has to go, or may not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its pool was full.
    Full,
    /// Its address had too many.
    Source,
    /// The process had no descriptor left.
    Descriptors,
    /// No request came in time.
    NothingAsked,
    /// No other request came in time.
    Idle,
    /// A request took too long.
    TooLong,
}

/// A place was found, perhaps because somebody else had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    pub id: Id,
    pub pool: Pool,
    pub gone: Option<(Id, Why)>,
}

/// Everybody there is at work and may not be disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub Why);

/// What the clock says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing before then.
    Wait(Mono),
    End(Why),
}

/// Everybody who is connected.
#[derive(Debug)]
pub struct Places {
    limits: Limits,
    proof: Proof,
    times: Times,
    /// In the order they came.
    guests: Vec<Guest>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    id: Id,
    source: Source,
    pool: Pool,
    since: Mono,
    /// When a request last began or ended.
    active: Mono,
    /// Requests under way.
    busy: u32,
    asked: bool,
    proved: bool,
    /// It is no longer HTTP, and lasts for as long as both ends like.
    streams: bool,
}

/// Who goes first: the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Silent,
    Idle,
    New,
    Unproved,
    Busy,
}

// === impl Source ===

impl Source {
    /// By the addresses of both ends. Who has one of ours is here.
    #[must_use]
    pub fn of(peer: IpAddr, own: IpAddr) -> Source {
        let (peer, own) = (peer.to_canonical(), own.to_canonical());
        match peer.is_loopback() || peer == own {
            true => Source::Local(peer),
            false => Source::Remote(network(peer)),
        }
    }

    fn pool(self) -> Pool {
        match self {
            Source::Trusted => Pool::Known,
            Source::Local(_) => Pool::Local,
            Source::Remote(_) => Pool::Remote,
        }
    }
}

/// Who shares an address, as far as limits go. In IPv6 anybody has as many addresses as he likes, of one network of 64 bits.
#[must_use]
pub fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => {
            Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()
        }
        other => other,
    }
}

// === impl Why ===

impl Why {
    /// As metrics tell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Full => "full",
            Why::Source => "source",
            Why::Descriptors => "descriptors",
            Why::NothingAsked => "nothing_asked",
            Why::Idle => "idle",
            Why::TooLong => "too_long",
        }
    }
}

// === impl Pool ===

impl Pool {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Pool::Remote => "remote",
            Pool::Local => "local",
            Pool::Known => "known",
        }
    }
}

// === impl Limits ===

impl Limits {
    /// The same with no more descriptors than these. Everybody keeps a few places.
    #[must_use]
    pub fn within(self, descriptors: usize) -> Limits {
        const LEAST: usize = 4;
        let all = self.remote + self.local + self.known * self.known_takes.max(1);
        if all <= descriptors {
            return self;
        }
        let fewer = |n: usize| (n.saturating_mul(descriptors) / all.max(1)).max(LEAST.min(n));
        let remote = fewer(self.remote);
        Limits {
            remote,
            local: fewer(self.local),
            known: fewer(self.known),
            per_source: fewer(self.per_source).min(remote.div_ceil(2)),
            ..self
        }
    }

    fn of(&self, pool: Pool) -> usize {
        match pool {
            Pool::Remote => self.remote,
            Pool::Local => self.local,
            Pool::Known => self.known,
        }
    }

    /// Of one address in a pool. Those of this machine have no such limit: the pool is theirs alone.
    fn of_source(&self, pool: Pool, source: Source) -> usize {
        match (pool, source) {
            (Pool::Known, Source::Remote(_)) => self.known.div_ceil(2),
            (Pool::Remote, _) => self.per_source.min(self.remote),
            _ => usize::MAX,
        }
    }
}

// === impl Guest ===

impl Guest {
    fn is_busy(&self) -> bool {
        self.busy > 0 || self.streams
    }

    /// How easily it makes way, and since when; none if it does not.
    fn rank(&self, now: Mono) -> Option<(Rank, Mono, Id)> {
        let is_new = now.since(self.since) < GRACE;
        let (rank, since) = match (self.is_busy(), self.proved) {
            (true, _) if self.pool == Pool::Known => return None,
            (true, true) => (Rank::Busy, self.since),
            (true, false) => (Rank::Unproved, self.since),
            (false, true) => (Rank::Idle, self.active),
            (false, false) if is_new => (Rank::New, self.since),
            (false, false) => (Rank::Silent, self.since),
        };
        Some((rank, since, self.id))
    }
}

// === impl Places ===

impl Places {
    #[must_use]
    pub fn new(limits: Limits, proof: Proof, times: Times) -> Places {
        Places { limits, proof, times, guests: Vec::new(), last: 0 }
    }

    /// A newcomer. Strangers always find a place, if need be that of the one among them who deserves it least.
    pub fn enter(&mut self, source: Source, now: Mono) -> Result<Entered, Refused> {
        let pool = source.pool();
        let gone = self.make_room(pool, source, now)?;
        self.last += 1;
        let id = Id(self.last);
        self.guests.push(Guest {
            id,
            source,
            pool,
            since: now,
            active: now,
            busy: 0,
            asked: false,
            proved: false,
            streams: false,
        });
        Ok(Entered { id, pool, gone })
    }

    /// A request's head is complete.
    pub fn ask(&mut self, id: Id, now: Mono) {
        if let Some(guest) = self.guest(id) {
            guest.busy += 1;
            guest.asked = true;
            guest.active = now;
        }
    }

    /// It is over; answered to the last byte, or given up.
    pub fn end(&mut self, id: Id, is_answered: bool, now: Mono) {
        let proves = is_answered && self.proof == Proof::Answer;
        if let Some(guest) = self.guest(id) {
            guest.busy = guest.busy.saturating_sub(1);
            guest.active = now;
            guest.proved |= proves;
        }
    }

    /// From now on it is a stream.
    pub fn stream(&mut self, id: Id) {
        if let Some(guest) = self.guest(id) {
            guest.streams = true;
        }
    }

    /// The other end said who it is. Without room among those who are known it stays where it was. Returns whether it
    /// moved, and who had to go for it.
    pub fn know(&mut self, id: Id, now: Mono) -> (bool, Option<(Id, Why)>) {
        let Some(guest) = self.guest(id) else { return (false, None) };
        guest.proved = true;
        if guest.pool == Pool::Known {
            return (false, None);
        }
        let source = guest.source;
        let Ok(gone) = self.make_room(Pool::Known, source, now) else { return (false, None) };
        if let Some(guest) = self.guest(id) {
            guest.pool = Pool::Known;
        }
        (true, gone)
    }

    /// Who goes when the process has no descriptor left; nobody if all are at work.
    pub fn relieve(&mut self, now: Mono) -> Option<(Id, Pool)> {
        let of = |guests: &[Guest], known: bool| {
            let guests = guests.iter().filter(|g| (g.pool == Pool::Known) == known);
            guests.filter_map(|g| g.rank(now)).filter(|(rank, ..)| *rank <= Rank::New).min()
        };
        let (.., id) = of(&self.guests, false).or_else(|| of(&self.guests, true))?;
        self.leave(id).map(|pool| (id, pool))
    }

    /// Returns the pool it was in; none if it was gone already.
    pub fn leave(&mut self, id: Id) -> Option<Pool> {
        let at = self.guests.binary_search_by_key(&id, |g| g.id).ok()?;
        Some(self.guests.remove(at).pool)
    }

    /// What the clock says of one.
    #[must_use]
    pub fn verdict(&self, id: Id, now: Mono) -> Verdict {
        let Ok(at) = self.guests.binary_search_by_key(&id, |g| g.id) else {
            return Verdict::Wait(now + self.times.idle);
        };
        let guest = &self.guests[at];
        let (end, why) = match (guest.is_busy(), self.times.busy) {
            _ if !guest.asked => (guest.since + self.times.first, Why::NothingAsked),
            (false, _) => (guest.active + self.times.idle, Why::Idle),
            (true, Some(limit)) if !guest.streams => (guest.active + limit, Why::TooLong),
            (true, _) => return Verdict::Wait(now + self.times.idle),
        };
        if now >= end { Verdict::End(why) } else { Verdict::Wait(end) }
    }

    #[must_use]
    pub fn count(&self, pool: Pool) -> usize {
        self.guests.iter().filter(|g| g.pool == pool).count()
    }

    /// Which pool somebody is in.
    #[must_use]
    pub fn pool(&self, id: Id) -> Option<Pool> {
        self.guests.binary_search_by_key(&id, |g| g.id).ok().map(|at| self.guests[at].pool)
    }

    /// Makes room for one of a source in a pool: its own address pays before others do.
    fn make_room(&mut self, pool: Pool, source: Source, now: Mono) -> Result<Option<(Id, Why)>, Refused> {
        let (mut all, mut own) = (0, 0);
        let (mut first, mut first_own) = (None, None);
        for guest in self.guests.iter().filter(|g| g.pool == pool) {
            let rank = guest.rank(now);
            all += 1;
            first = rank.into_iter().chain(first).min();
            if guest.source == source {
                own += 1;
                first_own = rank.into_iter().chain(first_own).min();
            }
        }
        let (first, why) = match () {
            () if own >= self.limits.of_source(pool, source) => (first_own, Why::Source),
            () if all >= self.limits.of(pool) => (first, Why::Full),
            () => return Ok(None),
        };
        let (.., id) = first.ok_or(Refused(why))?;
        self.leave(id);
        Ok(Some((id, why)))
    }

    fn guest(&mut self, id: Id) -> Option<&mut Guest> {
        let at = self.guests.binary_search_by_key(&id, |g| g.id).ok()?;
        Some(&mut self.guests[at])
    }
}

#[cfg(test)]
mod tests;
