//! Watched objects, read leniently: nothing that one of them holds may cost the others, or itself more than it has to
//! (docs/decisions/015.md).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use api::json::{FromJson, Reading};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use schema::lenient;
use serde_json::value::RawValue;

use crate::request::Client;

/// Complaints remembered, so that an object that changes often is not told of each time.
const REMEMBERED: usize = 1024;

/// What was read of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Read<T> {
    Whole(T),
    /// What it is called, whether it is deleted, and of the rest what could be read. Who knew it before keeps what he knew.
    Part(T),
    /// Nobody can say which object this is. A list with such an item does not say what is gone.
    Nothing,
}

/// An object that was not read, or not all of it.
#[derive(Clone, Copy, Debug)]
pub struct Unreadable<'a> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub resource_version: &'a str,
    /// Never its content: it may be a Secret's.
    pub why: &'a str,
    /// The same was not said of it before.
    pub is_news: bool,
}

/// Is told of every object that could not be read.
#[derive(Clone)]
pub struct Alarm(Arc<dyn Fn(&Unreadable<'_>) + Send + Sync>);

/// What was complained about.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    alarm: Option<Alarm>,
    /// By UID and reason.
    told: Mutex<BTreeSet<(String, String)>>,
}

// === impl Client ===

impl Client {
    /// An object as a watch or a list has it.
    pub fn read<T>(&self, raw: &RawValue) -> Read<T>
    where
        T: FromJson + Resource + Metadata<Ty = ObjectMeta>,
    {
        match lenient::read::<T>(raw.get().as_bytes()) {
            Ok(Reading { object, lost }) if lost.is_empty() => Read::Whole(object),
            Ok(Reading { object, lost }) => {
                self.complaints().add::<T>(object.metadata(), &format!("cannot read {}", lost.join(", ")));
                Read::Part(object)
            }
            Err(error) => {
                let why = format!("line {} column {} fits no {}", error.line(), error.column(), T::KIND);
                self.complaints().add::<T>(&ObjectMeta::default(), &why);
                Read::Nothing
            }
        }
    }
}

// === impl Complaints ===

impl Complaints {
    pub(crate) fn new(alarm: Option<Alarm>) -> Self {
        Self { alarm, ..Self::default() }
    }

    fn add<T: Resource>(&self, meta: &ObjectMeta, why: &str) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name, uid) = (text(&meta.namespace), text(&meta.name), text(&meta.uid));
        let is_news = self.is_news(&uid, why);
        if is_news {
            tracing::warn!(kind = T::KIND, namespace, name, uid, why, "an object is not understood");
        }
        let Some(alarm) = &self.alarm else { return };
        alarm.sound(&Unreadable {
            api_version: T::API_VERSION,
            kind: T::KIND,
            namespace: &namespace,
            name: &name,
            uid: &uid,
            resource_version: &text(&meta.resource_version),
            why,
            is_news,
        });
    }

    fn is_news(&self, uid: &str, why: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= REMEMBERED {
            told.clear();
        }
        told.insert((uid.to_owned(), why.to_owned()))
    }
}

// === impl Read ===

impl<T> Read<T> {
    /// What was read, all of it or not.
    #[must_use]
    pub fn any(self) -> Option<T> {
        match self {
            Read::Whole(object) | Read::Part(object) => Some(object),
            Read::Nothing => None,
        }
    }
}

// === impl Alarm ===

impl Alarm {
    pub fn new(alarm: impl Fn(&Unreadable<'_>) + Send + Sync + 'static) -> Alarm {
        Alarm(Arc::new(alarm))
    }

    pub fn sound(&self, unreadable: &Unreadable<'_>) {
        (self.0)(unreadable);
    }
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Alarm")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use serde_json::json;

    use super::*;
    use crate::request::Options;

    type Told = Arc<Mutex<Vec<String>>>;

    fn client() -> (Client, Told) {
        let told = Told::default();
        let sink = told.clone();
        let alarm = Alarm::new(move |u: &Unreadable<'_>| {
            let news = if u.is_news { "news" } else { "old" };
            sink.lock()
                .unwrap()
                .push(format!("{} {}/{} {}: {} ({news})", u.kind, u.namespace, u.name, u.uid, u.why));
        });
        let dial: crate::Dial = Arc::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
        (Client::over(dial, Options { alarm: Some(alarm), ..Options::default() }), told)
    }

    fn raw(value: &serde_json::Value) -> Box<RawValue> {
        RawValue::from_string(value.to_string()).unwrap()
    }

    #[test]
    fn what_cannot_be_read_is_named_and_its_deletion_counts() {
        let (client, told) = client();
        let odd = json!({
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "deletionTimestamp": "9999-12-31T23:59:59Z",
                "deletionGracePeriodSeconds": 1, "managedFields": 7,
            },
            "spec": {"nodeName": "here", "containers": "none"},
        });
        for _ in 0..2 {
            let Read::Part(pod) = client.read::<Pod>(&raw(&odd)) else { panic!("{odd}") };
            assert!(pod.metadata.deletion_timestamp.is_some());
            assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(1));
            assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("here"));
        }
        assert_eq!(client.read::<Pod>(&raw(&json!({"kind": "Status"}))), Read::Nothing);
        let said = told.lock().unwrap().clone();
        assert_eq!(said[0], "Pod n/a u: cannot read spec.containers (news)");
        assert_eq!(said[1], "Pod n/a u: cannot read spec.containers (old)");
        assert!(said[2].starts_with("Pod / : line 1 "), "{said:?}");
    }

    #[test]
    fn an_odd_object_is_whole_and_no_complaint_tells_a_secret() {
        let (client, told) = client();
        let odd = json!({"metadata": {"name": "a", "creationTimestamp": "9999-12-31T23:59:59Z"},
                         "data": {"k": null}, "immutable": null});
        assert!(matches!(client.read::<Secret>(&raw(&odd)), Read::Whole(_)));
        assert!(told.lock().unwrap().is_empty());
        let broken = json!({"metadata": {"name": "a"}, "data": {"k": "hush hush"}});
        assert!(matches!(client.read::<Secret>(&raw(&broken)), Read::Part(_)));
        assert!(matches!(client.read::<Secret>(&raw(&json!("hush"))), Read::Nothing));
        let said = told.lock().unwrap().join("\n");
        assert!(!said.contains("hush") && said.contains("data.k"), "{said}");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let complaints = Complaints::default();
        for n in 0..REMEMBERED * 3 {
            assert!(complaints.is_news(&n.to_string(), "why"));
        }
        assert!(complaints.told.lock().unwrap().len() <= REMEMBERED);
    }
}
