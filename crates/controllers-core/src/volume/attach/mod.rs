//! Attach and detach: VolumeAttachments for the CSI drivers that need them, and what Nodes are told of them.
//!
//! A VolumeAttachment asks a driver to attach; once it has, the Node is told (`volumesAttached`), and only then its kubelet
//! mounts. The way back is the other way round: the kubelet unmounts (`volumesInUse`), the Node is told that the volume is
//! none of its own any more, the API server is asked a last time whether it is in use, and the VolumeAttachment goes. Nothing
//! of that is remembered: VolumeAttachments and Nodes say how far it has come, also to the next process.

mod look;
mod tell;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::time::{Mono, Now};
use serde_json::{Value, json};

use self::look::{Look, Place, Wanted, in_use};
use super::{claims_of, pod_with_claims};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row};
use crate::object::Object;
use crate::plan::{Act, Done, Event, Outcome, PatchKind, Plan, Step, Why};
use crate::resource::{NODES, PODS, VOLUME_ATTACHMENTS};
use crate::view::View;

pub(crate) const ATTACH_DETACH: Row = Row {
    name: "persistentvolume-attach-detach-controller",
    aliases: &["attachdetach"],
    identity: "attachdetach-controller",
    event_source: "attachdetach-controller",
    queue: "pvcs",
    workers: |_| 1,
    retry: Retry { first: Duration::from_millis(500), last: Duration::from_secs(122), gives_up_after: None },
    is_on_by_default: true,
    watches: watches::WATCHES,
    reads: &[],
    is_single: true,
    make: |tuning| {
        Box::new(AttachDetach {
            is_forced: !tuning.disable_force_detach_on_timeout,
            ..AttachDetach::default()
        })
    },
};

/// How long a Node that is not well may keep a volume that nobody wants there any more.
const UNMOUNT: Duration = Duration::from_mins(6);
/// How long a driver may take before it is told.
const ATTACH: Duration = Duration::from_mins(2);

/// Pods with claims, by namespace and name.
type Users = BTreeMap<Key, Arc<Object>>;

#[derive(Debug, Default)]
struct AttachDetach {
    /// Volumes are taken from Nodes that are not well.
    is_forced: bool,
    users: Users,
    /// What Nodes that are gone had in use at the end.
    gone: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// Since when nobody wants them.
    unwanted: HashMap<Place, Mono>,
    /// Since when they are waited for.
    waiting: HashMap<Place, Mono>,
    /// What was told already: each error of a VolumeAttachment once, and once that a volume is elsewhere.
    told: HashMap<Place, Told>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Elsewhere,
    /// At this revision of the VolumeAttachment.
    Error(u64),
}

/// One look at everything.
struct Pass<'a> {
    look: Look,
    memory: &'a mut AttachDetach,
    now: Now,
    events: Vec<Event>,
    creates: Vec<Act>,
    /// What Nodes have to be told.
    attached: BTreeSet<Place>,
    /// What they must not be told any more.
    withdrawn: BTreeSet<Place>,
    /// To be detached, each with whether it is taken by force.
    detach: Vec<(Place, bool)>,
    wake: Option<Duration>,
}

// === impl AttachDetach ===

impl Controller for AttachDetach {
    fn reconcile(&mut self, view: &dyn View, _key: &Key, now: Now) -> Plan {
        let mut pass = Pass::new(view, self, now);
        pass.attach();
        pass.detach();
        pass.forget();
        let writes = pass.writes();
        let plan = if writes.is_empty() { pass.questions(None) } else { Plan::of(Step::at_once(writes)) };
        let events = std::mem::take(&mut pass.events);
        Plan { events, ..plan }.wake(pass.wake)
    }

    /// Writes, then questions, then deletions.
    fn settle(&mut self, view: &dyn View, _key: &Key, now: Now, done: &Done) -> Plan {
        let last = done.last();
        if last.iter().any(|(act, _)| matches!(act, Act::Delete { .. })) {
            return Plan::nothing();
        }
        let mut pass = Pass::new(view, self, now);
        pass.detach();
        if last.iter().any(|(act, _)| matches!(act, Act::Get { .. })) {
            return pass.deletions(done);
        }
        let events = pass.failures(done);
        Plan { events, ..pass.questions(Some(done)) }
    }

    fn observe(&mut self, change: &Change, _now: Now) {
        let Some(object) = change.object() else { return };
        match object.meta.resource {
            PODS => match change.new.as_ref().filter(|pod| uses_claims(pod)) {
                Some(pod) => _ = self.users.insert(Key::of(pod), pod.clone()),
                None => _ = self.users.remove(&Key::of(object)),
            },
            NODES if change.is_deletion() => {
                let in_use = in_use(&object.value());
                if !in_use.is_empty() {
                    self.gone.insert((*object.meta.name).into(), in_use);
                }
            }
            NODES => _ = self.gone.remove(&*object.meta.name),
            _ => {}
        }
    }
}

// === impl Pass ===

impl<'a> Pass<'a> {
    fn new(view: &dyn View, memory: &'a mut AttachDetach, now: Now) -> Pass<'a> {
        Pass {
            look: Look::new(view, &memory.users, &memory.gone),
            memory,
            now,
            events: Vec::new(),
            creates: Vec::new(),
            attached: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            detach: Vec::new(),
            wake: None,
        }
    }

    fn attach(&mut self) {
        let mut taken: BTreeSet<Arc<look::Volume>> = BTreeSet::new();
        for (place, wanted) in self.look.wanted.clone() {
            self.memory.unwanted.remove(&place);
            match self.look.attachments.get(&place).cloned() {
                Some(found) if found.object.is_deleting() => {
                    self.withdrawn.insert(place.clone());
                    self.tell_error(&place, &wanted, &found.object, "volume attachment is being deleted");
                }
                Some(found) if found.is_attached => {
                    if !self.look.is_reported(&place) {
                        self.events.extend(tell::attached(&wanted));
                    }
                    self.memory.told.remove(&place);
                    self.memory.waiting.remove(&place);
                    self.attached.insert(place);
                }
                Some(found) => {
                    self.withdrawn.insert(place.clone());
                    match &found.error {
                        Some(why) => self.tell_error(&place, &wanted, &found.object, why),
                        None => self.wait(&place, &wanted),
                    }
                }
                None => {
                    let is_elsewhere = !wanted.claimed.may_be_shared
                        && (taken.contains(&place.0) || self.is_elsewhere(&place));
                    if is_elsewhere {
                        if self.memory.told.insert(place.clone(), Told::Elsewhere) != Some(Told::Elsewhere) {
                            self.events.extend(tell::elsewhere(&self.look, &place, &wanted));
                        }
                        continue;
                    }
                    taken.insert(place.0.clone());
                    self.withdrawn.insert(place.clone());
                    self.creates.push(new_attachment(&place, &wanted));
                }
            }
        }
    }

    fn is_elsewhere(&self, (volume, node): &Place) -> bool {
        let actual = self.look.actual();
        actual.iter().any(|(other, at)| other == volume && at != node)
    }

    fn tell_error(&mut self, place: &Place, wanted: &Wanted, attachment: &Object, why: &str) {
        let told = Told::Error(attachment.meta.resource_version);
        if self.memory.told.insert(place.clone(), told) != Some(told) {
            self.events.extend(tell::failed(wanted, why));
        }
    }

    /// A driver that says nothing is told of from time to time.
    fn wait(&mut self, place: &Place, wanted: &Wanted) {
        let since = *self.memory.waiting.entry(place.clone()).or_insert(self.now.mono);
        let mut rest = ATTACH.saturating_sub(self.now.mono.since(since));
        if rest.is_zero() {
            let look::Volume { driver, handle } = &*place.0;
            let why = format!(
                "timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"
            );
            self.events.extend(tell::failed(wanted, &why));
            self.memory.waiting.insert(place.clone(), self.now.mono);
            rest = ATTACH;
        }
        self.wake_after(rest);
    }

    /// What nobody wants any more, as soon as its Node lets go of it.
    fn detach(&mut self) {
        for place in self.look.actual() {
            if self.look.wanted.contains_key(&place) {
                continue;
            }
            let since = *self.memory.unwanted.entry(place.clone()).or_insert(self.now.mono);
            let rest = UNMOUNT.saturating_sub(self.now.mono.since(since));
            let is_late = self.memory.is_forced && rest.is_zero();
            let unknown = look::NodeSays::default();
            let says = self.look.nodes.get(&place.1).unwrap_or(&unknown);
            let is_in_use = says.in_use.contains(&place.0.unique_name());
            let is_forced = is_late && !says.is_ready;
            if is_in_use && !is_forced && !says.is_out_of_service {
                if !rest.is_zero() && self.memory.is_forced {
                    self.wake_after(rest);
                }
                continue;
            }
            let is_checked = !is_late && !says.is_out_of_service;
            self.withdrawn.insert(place.clone());
            self.detach.push((place, !is_checked));
        }
    }

    fn forget(&mut self) {
        let (actual, wanted) = (self.look.actual(), &self.look.wanted);
        let memory = &mut *self.memory;
        memory.unwanted.retain(|place, _| actual.contains(place) && !wanted.contains_key(place));
        memory.waiting.retain(|place, _| wanted.contains_key(place));
        memory.told.retain(|place, _| wanted.contains_key(place));
        let nodes: BTreeSet<Arc<str>> = actual.into_iter().map(|(_, node)| node).collect();
        memory.gone.retain(|node, _| nodes.contains(node));
    }

    /// New VolumeAttachments, and one patch for each Node that has to be told something else.
    fn writes(&mut self) -> Vec<Act> {
        let mut acts = std::mem::take(&mut self.creates);
        for (node, says) in &self.look.nodes {
            let Some(object) = &says.object else { continue };
            let of_node = |places: &BTreeSet<Place>| -> BTreeSet<String> {
                let own = places.iter().filter(|(_, at)| at == node);
                own.map(|(volume, _)| volume.unique_name()).collect()
            };
            let (attached, withdrawn) = (of_node(&self.attached), of_node(&self.withdrawn));
            let mut reported = says.reported.clone();
            reported.retain(|name, _| !withdrawn.contains(name));
            for name in attached {
                reported.entry(name.clone()).or_insert_with(|| json!({"name": name, "devicePath": ""}));
            }
            if reported.keys().ne(says.reported.keys()) {
                let list: Vec<Value> = reported.into_values().collect();
                let list = if list.is_empty() { Value::Null } else { json!(list) };
                let patch = json!({"status": {"volumesAttached": list}});
                acts.push(Act::patch_status(object, PatchKind::Strategic, &patch));
            }
        }
        acts
    }

    /// Those whose Nodes know that they go, and which can go.
    fn ready(&self, done: Option<&Done>) -> Vec<(Place, bool)> {
        let is_told = |place: &Place| {
            let Some(node) = self.look.nodes.get(&place.1).and_then(|says| says.object.as_ref()) else {
                return true;
            };
            let patched = |(act, outcome): &(Act, Outcome)| {
                let is_of_node = matches!(act, Act::Patch { target, .. }
                    if target.resource == NODES && *target.name == *node.meta.name);
                is_of_node && (outcome.is_done() || outcome.error().is_some_and(|e| e.why == Why::NotFound))
            };
            !self.look.is_reported(place) || done.is_some_and(|done| done.acts.iter().any(patched))
        };
        let mut ready = self.detach.clone();
        ready.retain(|(place, _)| {
            let attachment = self.look.attachments.get(place);
            attachment.is_some_and(|found| !found.object.is_deleting()) && is_told(place)
        });
        ready
    }

    /// The kubelet may have begun to use a volume before it saw that it goes.
    fn questions(&self, done: Option<&Done>) -> Plan {
        let ready = self.ready(done);
        let nodes: BTreeSet<&Arc<str>> =
            ready.iter().filter(|(_, is_forced)| !is_forced).map(|((_, node), _)| node).collect();
        if nodes.is_empty() {
            let gone = ready.iter().filter_map(|(place, _)| self.deletion(place));
            return Plan::nothing().then(Step::at_once(gone));
        }
        let asks = nodes.into_iter().map(|node| Act::Get { path: NODES.object_path("", node) });
        Plan::of(Step::at_once(asks))
    }

    fn deletions(&self, done: &Done) -> Plan {
        let (mut acts, mut failure) = (Vec::new(), None);
        for (place, is_forced) in self.ready(Some(done)) {
            let (volume, node) = &place;
            match done.answer(&NODES.object_path("", node)) {
                _ if is_forced => acts.extend(self.deletion(&place)),
                Some(Outcome::Done(json)) => match serde_json::from_slice::<Value>(json) {
                    Ok(node) if !in_use(&node).contains(&volume.unique_name()) => {
                        acts.extend(self.deletion(&place));
                    }
                    _ => {
                        failure = Some(format!(
                            "DetachVolume failed for volume {:?} on node {node:?}: volume is still in use by node, \
                             according to Node status",
                            volume.unique_name()
                        ));
                    }
                },
                Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => {
                    acts.extend(self.deletion(&place));
                }
                _ => failure = Some(format!("DetachVolume failed fetching node {node:?} from API server")),
            }
        }
        Plan { failure, ..Plan::nothing().then(Step::at_once(acts)) }
    }

    fn deletion(&self, place: &Place) -> Option<Act> {
        self.look.attachments.get(place).map(|found| Act::delete(&found.object))
    }

    /// VolumeAttachments that could not be made.
    fn failures(&self, done: &Done) -> Vec<Event> {
        let mut events = Vec::new();
        for (place, wanted) in &self.look.wanted {
            let name = place.0.attachment(&place.1);
            let refused = done.last().iter().find_map(|(act, outcome)| match act {
                Act::Create { .. } if act.body()["metadata"]["name"] == *name => outcome.error(),
                _ => None,
            });
            if let Some(refusal) = refused.filter(|refusal| refusal.why != Why::AlreadyExists) {
                events.extend(tell::failed(wanted, &refusal.message));
            }
        }
        events
    }

    fn wake_after(&mut self, rest: Duration) {
        self.wake = Some(self.wake.map_or(rest, |wake| wake.min(rest)));
    }
}

fn new_attachment((volume, node): &Place, wanted: &Wanted) -> Act {
    let body = json!({
        "metadata": {"name": volume.attachment(node)},
        "spec": {
            "attacher": volume.driver,
            "nodeName": &**node,
            "source": {"persistentVolumeName": wanted.claimed.name},
        },
    });
    Act::create(VOLUME_ATTACHMENTS, "", body)
}

fn uses_claims(pod: &Object) -> bool {
    !pod.meta.node.is_empty() && pod_with_claims(pod).is_some_and(|pod| !claims_of(&pod).is_empty())
}
