//! ControllerRevisions: the templates that a DaemonSet or a StatefulSet has had.

use std::sync::Arc;

use base::time::Wall;
use schema::decode::conform;
use schema::types::At;
use serde_json::{Value, json};

use crate::claim::owned_metadata;
use crate::object::{Object, Unreadable};
use crate::plan::{Act, Outcome, Plan, Step, Why};
use crate::resource::CONTROLLER_REVISIONS;
use crate::view::View;

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Revision {
    pub(crate) object: Arc<Object>,
    pub(crate) number: i64,
    /// What it holds, in the one form of [`encode`].
    pub(crate) data: Vec<u8>,
    /// The template in it, as it was.
    pub(crate) template: Value,
}

/// What a revision of a template holds: a patch that puts the template back. Upstream compares it byte by byte, so it is what
/// Go's types would write: nothing that is empty, but `resources: {}`.
pub(crate) fn data(owner: &Object, template: &Value) -> Result<Value, Unreadable> {
    let mut template = template.clone();
    if let Some(at) = At::named("io.k8s.api.core.v1.PodTemplateSpec") {
        conform(&mut template, at).map_err(|error| owner.unreadable(format!("spec.template: {error}")))?;
    }
    template["$patch"] = json!("replace");
    Ok(json!({"spec": {"template": template}}))
}

/// Sorted, compact, and with the characters escaped that Go escapes.
pub(crate) fn encode(data: &Value) -> Vec<u8> {
    let text = data.to_string();
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => escaped.push(c),
        }
    }
    escaped.into_bytes()
}

/// A revision to be made.
pub(crate) fn create(
    owner: &Object,
    name: &str,
    mut labels: Value,
    hash: (&str, &str),
    data: &Value,
    number: i64,
) -> Act {
    if !labels.is_object() {
        labels = json!({});
    }
    labels[hash.0] = json!(hash.1);
    let annotations = owner.value()["metadata"]["annotations"].take();
    let mut metadata = json!({"name": name, "labels": labels});
    if annotations.is_object() {
        metadata["annotations"] = annotations;
    }
    let body = json!({"metadata": owned_metadata(owner, metadata), "data": data, "revision": number});
    Act::create(CONTROLLER_REVISIONS, &owner.meta.namespace, body)
}

/// The name of a new revision is taken. If another has it, the next one is tried.
pub(crate) fn name_taken(owner: &Object, status: &Value, view: &dyn View, create: &Act) -> Plan {
    let made = create.body();
    let name = made["metadata"]["name"].as_str().unwrap_or_default();
    let Some(known) = view.get(CONTROLLER_REVISIONS, &owner.meta.namespace, name) else {
        return Plan::nothing();
    };
    if known.is_controlled_by(&owner.meta.uid) && Revision::read(known).data == encode(&made["data"]) {
        return Plan::nothing();
    }
    let mut status = if status.is_object() { status.clone() } else { json!({}) };
    let count = status["collisionCount"].as_i64().unwrap_or(0);
    status["collisionCount"] = json!(count + 1);
    Plan::of(Step::in_turn([Act::update_status(owner, status)]))
}

/// The creation of a revision that was refused because its name is taken.
pub(crate) fn refused_name(done: &[(Act, Outcome)]) -> Option<&Act> {
    let is_taken = |(act, outcome): &&(Act, Outcome)| {
        matches!(act, Act::Create { resource, .. } if *resource == CONTROLLER_REVISIONS)
            && outcome.error().is_some_and(|error| error.why == Why::AlreadyExists)
    };
    done.iter().find(is_taken).map(|(act, _)| act)
}

/// By number, then age, then name: the last is the newest.
pub(crate) fn sort(revisions: &mut [Revision]) {
    revisions.sort_by(|a, b| a.order().cmp(&b.order()));
}

// === impl Revision ===

impl Revision {
    pub(crate) fn read(object: Arc<Object>) -> Revision {
        let mut value = object.value();
        let mut data = value["data"].take();
        let (number, text) = (value["revision"].as_i64().unwrap_or(0), encode(&data));
        let mut template = data.pointer_mut("/spec/template").map(Value::take).unwrap_or_default();
        if let Some(template) = template.as_object_mut() {
            template.remove("$patch");
        }
        Revision { number, data: text, template, object }
    }

    pub(crate) fn name(&self) -> &str {
        &self.object.meta.name
    }

    /// The same template under a higher number.
    pub(crate) fn renumber(&self, number: i64) -> Act {
        Act::update(&self.object, |value| value["revision"] = json!(number))
    }

    fn order(&self) -> (i64, Option<Wall>, &str) {
        (self.number, self.object.meta.created, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_data_is_what_go_would_write() {
        let template = json!({"metadata": {"labels": {"app": "a"}, "creationTimestamp": null, "annotations": {}}, "spec": {
            "hostNetwork": false, "terminationGracePeriodSeconds": 0, "volumes": [],
            "containers": [{"name": "c", "image": "i", "command": ["sh", "-c", "a <b && c>d\u{2028}"], "env": null}]}});
        let owner = testing::pod("x").object();
        let text = data(&owner, &template).map(|data| encode(&data)).unwrap_or_default();
        let want = concat!(
            r#"{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"#,
            r#""command":["sh","-c","a \u003cb \u0026\u0026 c\u003ed\u2028"],"image":"i","name":"c","resources":{}}],"#,
            r#""terminationGracePeriodSeconds":0}}}}"#
        );
        assert_eq!(String::from_utf8_lossy(&text), want);
        let misfit = data(&owner, &json!({"spec": {"containers": "many"}}));
        assert!(misfit.is_err(), "a template that is none is told");
    }
}
