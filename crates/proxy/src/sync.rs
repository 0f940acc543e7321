//! The loop: news in, rules out.

use std::sync::Arc;
use std::time::Duration;

use proxy_core::objects::{Changed, Cluster, Family};
use proxy_core::rules::{Delta, Host, Rulebook, Settings};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::Update;
use crate::ports::{Dataplane, Error};

/// News taken in one go before the kernel is told.
const MOST_NEWS: usize = 4096;

/// The first wait after a failure; it doubles from there.
const FIRST_RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    pub settings: Settings,
    pub periods: Periods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Between the end of one change and the next. The first after a quiet time waits for nothing.
    pub gap: Duration,
    /// Between two comparisons with the kernel when nothing seems wrong.
    pub verify: Duration,
    /// The longest wait after failures.
    pub retry: Duration,
}

/// How it goes, family by family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub families: Vec<FamilyReport>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FamilyReport {
    pub family: Family,
    /// Since when there is news that the kernel does not know.
    pub pending_since: Option<Instant>,
    pub synced_at: Option<Instant>,
    pub syncs: u64,
    pub failures: u64,
    /// Comparisons that found something wrong after the first.
    pub repairs: u64,
}

struct Plane {
    book: Rulebook,
    dataplane: Box<dyn Dataplane>,
    /// What the last comparison or change left us believing.
    trust: Trust,
    verified_at: Option<Instant>,
    retry: Option<(Instant, Duration)>,
    alarms: Option<mpsc::Receiver<()>>,
    /// Compared, and not listening yet.
    wants_ears: bool,
    report: FamilyReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// The kernel has not been looked at.
    None,
    /// It was as we left it, as far as we know.
    Full,
    /// Somebody touched it, or a change failed.
    Lost,
}

/// Runs until `token` is cancelled; the kernel keeps what it has. An error only if a backend panicked.
pub async fn run(
    config: Config,
    dataplanes: Vec<(Family, Box<dyn Dataplane>)>,
    mut news: mpsc::Receiver<Update>,
    report: Arc<watch::Sender<Report>>,
    token: CancellationToken,
) -> Result<(), tokio::task::JoinError> {
    let mut cluster = Cluster::new(&config.node_name);
    let mut host = Host::default();
    let plane = |(family, dataplane)| Plane::new(family, config.settings.clone(), dataplane);
    let mut planes: Vec<Plane> = dataplanes.into_iter().map(plane).collect();
    let (mut is_open, mut is_stale, mut quiet_until) = (true, false, Instant::now());
    loop {
        let now = Instant::now();
        if now >= quiet_until {
            let mut did_anything = false;
            let mut next = Vec::with_capacity(planes.len());
            for mut plane in planes {
                if !plane.is_due(is_stale, now, config.periods) {
                    next.push(plane);
                    continue;
                }
                let Some(changed) = cluster.take_changes(plane.report.family) else {
                    next.push(plane);
                    continue;
                };
                plane = plane.sync(&cluster, &host, changed, config.periods).await?;
                did_anything = true;
                next.push(plane);
            }
            planes = next;
            // Only when all have written everything once: while anybody listens, the kernel makes a message of each
            // element, for each family and in every network namespace, which costs more than the change itself.
            if planes.iter().all(|plane| plane.verified_at.is_some() || plane.retry.is_some()) {
                planes.iter_mut().for_each(Plane::listen);
            }
            if did_anything {
                is_stale = false;
                quiet_until = Instant::now() + config.periods.gap;
                report.send_replace(Report::of(&planes));
                continue;
            }
        }
        let deadline = planes.iter().map(|p| p.due_at(now, config.periods)).min();
        let deadline = match is_stale && cluster.is_complete() {
            true => quiet_until,
            false => deadline.unwrap_or(now + config.periods.verify).max(quiet_until),
        };
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            update = news.recv(), if is_open => match update {
                None => is_open = false,
                Some(update) => {
                    let mut is_new = update.absorb(&mut cluster, &mut host);
                    for _ in 0..MOST_NEWS {
                        let Ok(update) = news.try_recv() else { break };
                        is_new |= update.absorb(&mut cluster, &mut host);
                    }
                    is_stale |= is_new;
                    // Before the first lists are there, nothing is late.
                    if is_stale && cluster.is_complete() {
                        planes.iter_mut().for_each(Plane::note_news);
                        report.send_replace(Report::of(&planes));
                    }
                }
            },
            at = next_alarm(&mut planes) => {
                let plane = &mut planes[at];
                tracing::info!(family = plane.report.family.name(), "somebody else changed our rules");
                plane.trust = Trust::Lost;
            }
            () = sleep_until(deadline), if cluster.is_complete() => {}
        }
    }
}

/// Which plane's alarm went off.
async fn next_alarm(planes: &mut [Plane]) -> usize {
    std::future::poll_fn(|context| {
        for (at, plane) in planes.iter_mut().enumerate() {
            let Some(alarms) = &mut plane.alarms else { continue };
            match alarms.poll_recv(context) {
                std::task::Poll::Ready(Some(())) => return std::task::Poll::Ready(at),
                std::task::Poll::Ready(None) => plane.alarms = None,
                std::task::Poll::Pending => {}
            }
        }
        std::task::Poll::Pending
    })
    .await
}

// === impl Report ===

impl Report {
    fn of(planes: &[Plane]) -> Self {
        Self { families: planes.iter().map(|plane| plane.report.clone()).collect() }
    }
}

// === impl Plane ===

impl Plane {
    fn new(family: Family, settings: Settings, dataplane: Box<dyn Dataplane>) -> Self {
        let report =
            FamilyReport { family, pending_since: None, synced_at: None, syncs: 0, failures: 0, repairs: 0 };
        Self {
            book: Rulebook::new(family, settings),
            dataplane,
            trust: Trust::None,
            verified_at: None,
            retry: None,
            alarms: None,
            wants_ears: false,
            report,
        }
    }

    fn note_news(&mut self) {
        self.report.pending_since.get_or_insert_with(Instant::now);
    }

    /// When something has to be done without any news.
    fn due_at(&self, now: Instant, periods: Periods) -> Instant {
        match (self.retry, self.trust, self.verified_at) {
            (Some((at, _)), ..) => at,
            (None, Trust::Full, Some(verified)) => verified + periods.verify,
            _ => now,
        }
    }

    fn is_due(&self, is_stale: bool, now: Instant, periods: Periods) -> bool {
        let is_waiting = self.retry.is_some_and(|(at, _)| now < at);
        !is_waiting && (is_stale || now >= self.due_at(now, periods))
    }

    async fn sync(
        mut self,
        cluster: &Cluster,
        host: &Host,
        changed: Changed,
        periods: Periods,
    ) -> Result<Self, tokio::task::JoinError> {
        let delta = self.book.update(cluster, host, changed);
        let is_late = self.verified_at.is_none_or(|at| at + periods.verify <= Instant::now());
        let must_verify = self.trust != Trust::Full || is_late;
        if delta.is_empty() && !must_verify {
            self.report.pending_since = None;
            return Ok(self);
        }
        let has_news = !delta.is_empty() || self.retry.is_some();
        let (mut plane, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = self.act(&delta, must_verify);
            (self, outcome)
        })
        .await?;
        match outcome {
            Ok(faults) => plane.succeed(must_verify, has_news, &faults),
            Err(error) => plane.fail(&error, periods),
        }
        Ok(plane)
    }

    /// Blocks.
    fn act(&mut self, delta: &Delta, must_verify: bool) -> Result<Vec<String>, Error> {
        match must_verify {
            true => self.dataplane.verify(self.book.rules()),
            false => self.dataplane.apply(self.book.rules(), delta).map(|()| Vec::new()),
        }
    }

    /// With news, what a comparison found to differ is mostly the news.
    fn succeed(&mut self, did_verify: bool, has_news: bool, faults: &[String]) {
        let now = Instant::now();
        let family = self.report.family.name();
        if did_verify {
            if self.trust == Trust::None {
                tracing::info!(family, found = faults.len(), "the kernel has our rules");
            } else if !faults.is_empty() && !has_news {
                tracing::warn!(family, faults = faults.join(", "), "put right what was changed in our rules");
                self.report.repairs += 1;
            }
            self.trust = Trust::Full;
            self.verified_at = Some(now);
        }
        self.retry = None;
        self.report.pending_since = None;
        self.report.synced_at = Some(now);
        self.report.syncs += 1;
        self.wants_ears |= did_verify && self.alarms.is_none();
    }

    fn listen(&mut self) {
        if !std::mem::take(&mut self.wants_ears) {
            return;
        }
        match self.dataplane.listen() {
            Ok(alarms) => {
                self.alarms = Some(alarms);
                // What happened between the comparison and now went unheard.
                self.trust = Trust::Lost;
            }
            Err(cause) => {
                let family = self.report.family.name();
                tracing::warn!(family, %cause, "not hearing when others change our rules");
            }
        }
    }

    /// What was to be changed is not lost: the next try compares everything.
    fn fail(&mut self, error: &Error, periods: Periods) {
        let wait = self.retry.map_or(FIRST_RETRY, |(_, wait)| wait * 2).min(periods.retry);
        self.retry = Some((Instant::now() + wait, wait));
        if self.trust == Trust::Full {
            self.trust = Trust::Lost;
        }
        self.report.failures += 1;
        let family = self.report.family.name();
        tracing::warn!(family, %error, retry_in_ms = wait.as_millis() as u64, "telling the kernel failed");
    }
}
