//! What users are told, with upstream's words. What is said again becomes a series instead of a new Event.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Request};
use jiff::Timestamp;
use scheduler_core::pod::Pod;
use serde_json::{Value, json};
use supervise::Supervisor;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// Events that were not sent yet; more are dropped.
const QUEUE: usize = 1000;
/// Sent at a time.
const AT_ONCE: usize = 8;
/// Series remembered.
const MOST_SERIES: usize = 4096;
/// A note that is longer is cut.
const NOTE_MAX: usize = 1024;
/// A series that is silent for this long has ended.
const SERIES_ENDS: Duration = Duration::from_secs(6 * 60);
/// An Event is tried this often while nobody answers, and this far apart.
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);
/// How often a long series is told.
const SERIES_TOLD: Duration = Duration::from_secs(30 * 60);

/// Takes what is to be told, and never waits.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(mpsc::Sender<Notice>);

#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) is_warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) note: String,
    pub(crate) about: Arc<Pod>,
    pub(crate) related: Option<Arc<Pod>>,
    /// Of whose profile.
    pub(crate) scheduler: String,
}

#[derive(Debug)]
struct Series {
    name: String,
    count: u64,
    last: Instant,
    told: Option<Instant>,
}

/// What is to be sent for a notice.
#[derive(Debug, PartialEq)]
enum Letter {
    New(Value),
    /// Of the Event that is there, and the whole one in case that it is not.
    Again {
        name: String,
        patch: Value,
        event: Value,
    },
    Nothing,
}

// === impl Recorder ===

impl Recorder {
    /// Starts the task that sends.
    pub(crate) fn start(client: Client, hostname: String, tasks: &Supervisor) -> Recorder {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tasks.once("events", run(client, hostname, receiver));
        Recorder(sender)
    }

    pub(crate) fn tell(&self, notice: Notice) {
        if self.0.try_send(notice).is_err() {
            tracing::debug!("an event is dropped: too many wait");
        }
    }
}

async fn run(client: Client, hostname: String, mut notices: mpsc::Receiver<Notice>) {
    let mut known: HashMap<String, Series> = HashMap::new();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(notice) = notices.recv().await {
        let (now, wall) = (Instant::now(), Timestamp::now());
        let namespace = notice.about.key.namespace.clone();
        let letter = notice.letter(&mut known, &hostname, now, wall);
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let (request, again) = match letter {
            Letter::New(event) => (Request::post(path, event.to_string()), None),
            Letter::Again { name, patch, event } => {
                let again = Request::post(path.clone(), event.to_string());
                (Request::strategic_patch(format!("{path}/{name}"), patch.to_string()), Some(again))
            }
            Letter::Nothing => continue,
        };
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let client = client.clone();
        supervise::spawn("event", async move {
            send(&client, request, again).await;
            drop(place);
        });
    }
}

/// Sends it until the server has answered. An Event of a series that the server has forgotten is made anew with `again`.
async fn send(client: &Client, mut request: Request, mut again: Option<Request>) {
    for left in (0..TRIES).rev() {
        match client.ask_bytes(request.clone()).await {
            Ok(_) => return,
            Err(error) if error.is_not_found() && again.is_some() => {
                request = again.take().unwrap_or(request);
            }
            Err(error) if error.code().is_some() || left == 0 => {
                tracing::debug!(%error, "event not sent");
                return;
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

// === impl Notice ===

impl Notice {
    fn letter(
        &self,
        known: &mut HashMap<String, Series>,
        hostname: &str,
        now: Instant,
        wall: Timestamp,
    ) -> Letter {
        let key = format!("{} {} {} {}", self.about.uid, self.reason, self.action, self.note);
        if known.len() >= MOST_SERIES {
            known.retain(|_, s| now.duration_since(s.last) < SERIES_ENDS);
        }
        if known.len() >= MOST_SERIES {
            known.clear();
        }
        if let Some(series) = known.get_mut(&key).filter(|s| now.duration_since(s.last) < SERIES_ENDS) {
            series.count += 1;
            series.last = now;
            if series.told.is_some_and(|told| now.duration_since(told) < SERIES_TOLD) {
                return Letter::Nothing;
            }
            series.told = Some(now);
            let at = format!("{wall:.6}");
            let patch = json!({"series": {"count": series.count, "lastObservedTime": at}});
            let name = series.name.clone();
            let mut event = self.event(&name, hostname, wall);
            event["series"] = patch["series"].clone();
            return Letter::Again { name, patch, event };
        }
        let name = format!("{}.{:x}", self.about.key.name, wall.as_nanosecond());
        known.insert(key, Series { name: name.clone(), count: 1, last: now, told: None });
        Letter::New(self.event(&name, hostname, wall))
    }

    fn event(&self, name: &str, hostname: &str, wall: Timestamp) -> Value {
        let object = |pod: &Pod| json!({"apiVersion": "v1", "kind": "Pod", "namespace": &*pod.key.namespace, "name": &*pod.key.name, "uid": &*pod.uid});
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": &*self.about.key.namespace, "name": name},
            "eventTime": format!("{wall:.6}"),
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "action": self.action,
            "note": cut(&self.note),
            "regarding": object(&self.about),
            "reportingController": self.scheduler,
            "reportingInstance": format!("{}-{hostname}", self.scheduler),
        });
        if let Some(related) = &self.related {
            event["related"] = object(related);
        }
        event
    }
}

/// What the API server takes of a note.
fn cut(note: &str) -> String {
    const REST: &str = " ...";
    if note.len() <= NOTE_MAX {
        return note.to_owned();
    }
    let mut end = NOTE_MAX - REST.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{REST}", &note[..end])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn notice(note: &str) -> Notice {
        let object = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        Notice {
            is_warning: true,
            reason: "FailedScheduling",
            action: "Scheduling",
            note: note.to_owned(),
            about: Arc::new(Pod::read(&serde_json::from_value(object).unwrap())),
            related: None,
            scheduler: "default-scheduler".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_again_is_a_series_and_is_told_twice_in_half_an_hour() {
        let (mut known, wall) = (HashMap::new(), Timestamp::UNIX_EPOCH);
        let mut say = |note: &str, now: Instant| notice(note).letter(&mut known, "host", now, wall);
        let start = Instant::now();
        let Letter::New(event) = say("a", start) else { panic!("not new") };
        assert_eq!(
            (&event["metadata"]["name"], &event["reportingInstance"]),
            (&json!("p.0"), &json!("default-scheduler-host"))
        );
        let Letter::Again { name, patch, event } = say("a", start) else { panic!("no series") };
        assert_eq!((name.as_str(), &patch["series"]["count"]), ("p.0", &json!(2)));
        assert_eq!((&event["series"], &event["reason"]), (&patch["series"], &json!("FailedScheduling")));
        assert_eq!(say("a", start + Duration::from_secs(60)), Letter::Nothing);
        assert!(matches!(say("b", start), Letter::New(_)), "another note is another event");
        assert!(matches!(say("a", start + Duration::from_secs(600)), Letter::New(_)), "the series has ended");
    }

    #[test]
    fn a_long_note_is_cut_where_a_character_ends() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"é".repeat(600));
        assert!(long.len() <= NOTE_MAX && long.ends_with("é ..."));
    }
}
