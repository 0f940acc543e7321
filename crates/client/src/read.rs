//! Watched objects, read leniently: nothing that one of them holds may cost the others, or itself more than it has to
//! (docs/decisions/015.md).

use api::json::{FromJson, Reading};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use schema::lenient;
use serde_json::value::RawValue;

use crate::request::Client;

/// What was read of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Read<T> {
    Whole(T),
    /// What it is called, whether it is deleted, and of the rest what could be read. Who knew it before keeps what he knew.
    Part(T),
    /// Nobody can say which object this is. A list with such an item does not say what is gone.
    Nothing,
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
                self.unreadable().add::<T>(object.metadata(), &format!("cannot read {}", lost.join(", ")));
                Read::Part(object)
            }
            Err(error) => {
                let why = format!("line {} column {} fits no {}", error.line(), error.column(), T::KIND);
                self.unreadable().add::<T>(&ObjectMeta::default(), &why);
                Read::Nothing
            }
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use serde_json::json;

    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::request::Options;
    use crate::unreadable::{Unreadable, UnreadableHandler};

    type Told = Arc<Mutex<Vec<String>>>;

    fn client() -> (Client, Told) {
        let told = Told::default();
        let sink = told.clone();
        let handler = UnreadableHandler::new(move |u: &Unreadable<'_>| {
            let news = if u.is_news { "news" } else { "old" };
            sink.lock()
                .unwrap()
                .push(format!("{} {}/{} {}: {} ({news})", u.kind, u.namespace, u.name, u.uid, u.why));
        });
        let dial: crate::Dial = Arc::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
        (Client::over(dial, Options { on_unreadable: Some(handler), ..Options::default() }), told)
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
    fn an_odd_object_is_whole_and_no_log_tells_a_secret() {
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
}
