//! Objects that cannot be read are counted, and their users are told.

use std::sync::{Arc, OnceLock};

use client::{Unreadable, UnreadableHandler};
use kubelet_core::events::{About, Happened};
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// The way to those who send events, which is there after the client is.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreadEvents(Arc<OnceLock<mpsc::Sender<Happened>>>);

// === impl UnreadEvents ===

impl UnreadEvents {
    pub(super) fn tell_to(&self, sink: mpsc::Sender<Happened>) {
        // It is set once, where the cluster is made.
        let _ = self.0.set(sink);
    }

    pub(super) fn handler(&self, metrics: Arc<Metrics>, node: &str) -> UnreadableHandler {
        let (sink, node) = (self.0.clone(), node.to_owned());
        UnreadableHandler::new(move |unreadable| {
            metrics.unreadable_objects_total.inc([unreadable.kind]);
            if let Some(sink) = sink.get().filter(|_| unreadable.is_news) {
                // A full queue means that the API server is away; the log has it.
                let _ = sink.try_send(event(unreadable, &node));
            }
        })
    }
}

/// On the object itself, or on the node where events cannot name it.
fn event(unreadable: &Unreadable<'_>, node: &str) -> Happened {
    let Unreadable { kind, namespace, name, uid, resource_version, why, .. } = *unreadable;
    let about = if unreadable.api_version == "v1" && !uid.is_empty() {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        About { kind, namespace, name, uid: uid.to_owned(), resource_version: resource_version.to_owned() }
    } else {
        let (name, uid) = (node.to_owned(), node.to_owned());
        About { kind: "Node", namespace: String::new(), name, uid, resource_version: String::new() }
    };
    let object = match (namespace, name) {
        ("", name) => format!("{kind} {name:?}"),
        (namespace, name) => format!("{kind} \"{namespace}/{name}\""),
    };
    Happened {
        about,
        field_path: String::new(),
        kind: "Warning",
        reason: "FailedDecode".to_owned(),
        message: format!("{object} is not understood, and what was known of it stays: {why}"),
        annotations: Default::default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const POD: Unreadable<'_> = Unreadable {
        api_version: "v1",
        kind: "Pod",
        namespace: "n",
        name: "a",
        uid: "u",
        resource_version: "7",
        why: "cannot read spec",
        is_news: true,
    };

    #[tokio::test]
    async fn an_object_that_cannot_be_read_is_counted_and_told_of_once() {
        let (sink, mut told) = mpsc::channel(4);
        let (unread, metrics) = (UnreadEvents::default(), Arc::new(Metrics::default()));
        let handler = unread.handler(metrics.clone(), "here");
        // Before anybody sends events, what cannot be read is counted.
        handler.call(&POD);
        unread.tell_to(sink);
        handler.call(&POD);
        handler.call(&Unreadable { is_news: false, ..POD });
        let mut text = String::new();
        metrics.write(&mut text).unwrap();
        assert!(text.contains("longshore_unreadable_objects_total{kind=\"Pod\"} 3"), "{text}");
        let first = told.try_recv().unwrap();
        assert_eq!((first.about.kind, first.about.name.as_str()), ("Pod", "a"));
        assert_eq!(
            first.message,
            "Pod \"n/a\" is not understood, and what was known of it stays: cannot read spec"
        );
        let class = Unreadable { api_version: "node.k8s.io/v1", kind: "RuntimeClass", namespace: "", ..POD };
        let told_of_node = event(&class, "here");
        assert_eq!((told_of_node.about.kind, told_of_node.about.name.as_str()), ("Node", "here"));
        assert!(told.try_recv().is_err());
    }
}
