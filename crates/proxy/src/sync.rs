//! The loop: news in, rules out.

mod contest;
mod plane;

use std::sync::Arc;
use std::time::Duration;

use proxy_core::objects::{Cluster, Family};
use proxy_core::rules::{Host, Settings};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::plane::Plane;
use crate::observed::Triggers;
use crate::ports::Dataplane;
pub use crate::report::{FamilyReport, Pending, Report};
use crate::yield_flag::YieldFlag;
use crate::{Listed, Update};

/// News taken in one go before the kernel is told.
const MOST_NEWS: usize = 4096;

#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    pub settings: Settings,
    pub periods: Periods,
    /// When what is told changed; for a metric.
    pub triggers: Triggers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    pub gap: Gap,
    /// Between two comparisons with the kernel when nothing seems wrong.
    pub verify: Duration,
    /// The longest wait after failures.
    pub retry: Duration,
}

/// Between the end of one change and the next. The first after a quiet time waits for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Just so long.
    Said(Duration),
    /// So long at most. It is there to leave processor and kernel to others: who changed little need not wait.
    AtMost(Duration),
}

/// What is told, and what is known because of it.
struct Inbox {
    news: mpsc::Receiver<Update>,
    is_open: bool,
    cluster: Cluster,
    host: Host,
    /// Something is different since somebody last asked.
    is_new: bool,
    pending: Pending,
    triggers: Triggers,
}

/// Runs until `token` is cancelled; the kernel keeps what it has. An error only if a backend panicked.
pub async fn run(
    config: Config,
    dataplanes: Vec<(Family, Box<dyn Dataplane>)>,
    news: mpsc::Receiver<Update>,
    report: Arc<watch::Sender<Report>>,
    token: CancellationToken,
) -> Result<(), JoinError> {
    let mut inbox = Inbox::new(&config.node_name, news, config.triggers);
    let plane = |(family, dataplane)| Plane::new(family, config.settings.clone(), dataplane);
    let mut planes: Vec<Plane> = dataplanes.into_iter().map(plane).collect();
    let mut quiet_until = Instant::now();
    loop {
        let now = Instant::now();
        let is_due = |plane: &Plane| plane.due_at(now, quiet_until) <= now;
        if inbox.cluster.is_complete() && planes.iter().any(is_due) {
            let mut longest = None;
            let mut next = Vec::with_capacity(planes.len());
            for mut plane in planes {
                // With news all have something to do, and the first who made way for it comes first.
                if is_due(&plane) && !inbox.is_new {
                    let gap;
                    (plane, gap) = plane.serve(&mut inbox, config.periods, quiet_until).await?;
                    longest = longest.max(gap);
                }
                next.push(plane);
            }
            planes = next;
            // Only when all have written everything once: while anybody listens, the kernel makes a message of each
            // element, for each family and in every network namespace, which costs more than the change itself.
            if planes.iter().all(|plane| plane.look_at.is_some() || plane.retry.is_some()) {
                planes.iter_mut().for_each(Plane::listen);
            }
            if let Some(gap) = longest {
                quiet_until = Instant::now() + gap;
            }
            inbox.tell(&mut planes);
            if planes.iter().all(|plane| !plane.has_news && plane.retry.is_none()) {
                inbox.pending = Pending::default();
            }
            report.send_replace(Report::of(&planes, &inbox));
            continue;
        }
        let due = planes.iter().map(|plane| plane.due_at(now, quiet_until)).min();
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            () = inbox.absorb() => {
                // Before the first lists are there, nothing is late.
                if inbox.cluster.is_complete() && inbox.tell(&mut planes) {
                    report.send_replace(Report::of(&planes, &inbox));
                }
            },
            at = next_notification(&mut planes) => {
                let plane = &mut planes[at];
                tracing::info!(family = plane.report.family.name(), "somebody else changed our rules");
                plane.note_touch();
            }
            () = sleep_until(due.unwrap_or(now + config.periods.verify)), if inbox.cluster.is_complete() => {}
        }
    }
}

/// Which plane was notified.
async fn next_notification(planes: &mut [Plane]) -> usize {
    std::future::poll_fn(|context| {
        for (at, plane) in planes.iter_mut().enumerate() {
            let Some(notifications) = &mut plane.notifications else { continue };
            match notifications.poll_recv(context) {
                std::task::Poll::Ready(Some(())) => return std::task::Poll::Ready(at),
                std::task::Poll::Ready(None) => plane.notifications = None,
                std::task::Poll::Pending => {}
            }
        }
        std::task::Poll::Pending
    })
    .await
}

// === impl Inbox ===

impl Inbox {
    fn new(node_name: &str, news: mpsc::Receiver<Update>, triggers: Triggers) -> Self {
        let (cluster, host) = (Cluster::new(node_name), Host::default());
        Self { news, is_open: true, cluster, host, is_new: false, pending: Pending::default(), triggers }
    }

    /// Waits for news, and takes in what there is. Nothing is lost if nobody waits to the end.
    async fn absorb(&mut self) {
        if !self.is_open {
            return std::future::pending().await;
        }
        let Some(update) = self.news.recv().await else {
            self.is_open = false;
            return;
        };
        self.take(update);
        for _ in 0..MOST_NEWS {
            let Ok(update) = self.news.try_recv() else { break };
            self.take(update);
        }
    }

    fn take(&mut self, update: Update) {
        let subject = update.subject();
        let trigger = match &update {
            Update::Slice(slice) => self.triggers.read(slice),
            _ => None,
        };
        if update.absorb(&mut self.cluster, &mut self.host) {
            self.is_new = true;
            // What changed nothing, such as a slice that is listed again, was not waited for.
            if let Some((family, at)) = trigger {
                self.triggers.note(family, at);
            }
            match subject {
                Some(Listed::Services) => self.pending.services += 1,
                Some(Listed::Slices) => self.pending.slices += 1,
                None => {}
            }
        }
    }

    /// Says whether there was anything to tell.
    fn tell(&mut self, planes: &mut [Plane]) -> bool {
        let is_new = std::mem::take(&mut self.is_new);
        if is_new {
            planes.iter_mut().for_each(Plane::note_news);
        }
        is_new
    }

    /// Waits for the end of a job, and asks it to yield when there is news that the kernel may be told by then.
    async fn attend<T>(
        &mut self,
        mut job: JoinHandle<T>,
        flag: &YieldFlag,
        not_before: Instant,
    ) -> Result<T, JoinError> {
        loop {
            tokio::select! {
                done = &mut job => return done,
                () = self.absorb(), if !self.is_new => {}
                () = sleep_until(not_before), if self.is_new && !flag.is_raised() => flag.raise(),
            }
        }
    }
}

// === impl Report ===

impl Report {
    fn of(planes: &[Plane], inbox: &Inbox) -> Self {
        Self { families: planes.iter().map(|plane| plane.report.clone()).collect(), pending: inbox.pending }
    }
}
