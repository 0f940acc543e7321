//! Static Pods that another kubelet began.
//!
//! The UID of a static Pod is a hash of its manifest, and no two kinds of kubelet compute the same. So that one can take
//! the place of another and nothing is restarted, a Pod that runs keeps its UID as long as its manifest is the one that it
//! was made from. The runtime remembers too little of a Pod to compare the two field by field (a container's hash covers
//! its name and its image only), so the manifest must not have been touched since the other kubelet read it.

use std::collections::BTreeMap;

use api::pod::static_pod::{HASH_ANNOTATION, MIRROR_ANNOTATION, SEEN_ANNOTATION, SOURCE_ANNOTATION};
use base::ids::PodUid;
use base::time::Wall;
use k8s_openapi::api::core::v1::Pod;

use crate::cri_config::metadata::{POD_NAME, POD_NAMESPACE, POD_UID};
use crate::hash::container_hash;

/// A Pod whose sandbox is ready, as the runtime lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    pub uid: PodUid,
    /// Labels of the sandbox: the Pod's, and those that name it.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the sandbox, which are the Pod's.
    pub annotations: BTreeMap<String, String>,
    /// Name and hash of each container that runs.
    pub containers: Vec<(String, Option<u32>)>,
    /// The UID that the manifest has by our reckoning, noted when we took the Pod over.
    pub noted: Option<PodUid>,
}

/// The running Pod whose UID a manifest's Pod takes over, if there is exactly one.
///
/// `pod` has the UID that we compute; `touched` is when its file was last changed in any way, none if that cannot be told.
#[must_use]
pub fn predecessor<'a>(pod: &Pod, touched: Option<Wall>, running: &'a [Running]) -> Option<&'a Running> {
    let mut of_its_name = running.iter().filter(|r| r.is_named_as(pod));
    let only = of_its_name.next().filter(|_| of_its_name.next().is_none())?;
    let own = pod.metadata.uid.as_deref()?;
    let is_another = only.uid.as_str() != own;
    let unchanged = only.noted.as_ref().is_some_and(|noted| noted.as_str() == own)
        || touched.zip(only.seen()).is_some_and(|(touched, seen)| touched < seen);
    (is_another && unchanged && only.is_from_a_file() && only.looks_like(pod)).then_some(only)
}

// === impl Running ===

impl Running {
    fn is_named_as(&self, pod: &Pod) -> bool {
        let label = |key: &str| self.labels.get(key).map(String::as_str);
        label(POD_NAMESPACE) == pod.metadata.namespace.as_deref()
            && label(POD_NAME) == pod.metadata.name.as_deref()
    }

    /// A kubelet made it of a file.
    fn is_from_a_file(&self) -> bool {
        let annotation = |key: &str| self.annotations.get(key).map(String::as_str);
        annotation(SOURCE_ANNOTATION) == Some("file")
            && annotation(HASH_ANNOTATION) == Some(self.uid.as_str())
    }

    /// When the kubelet that made the sandbox had read the manifest.
    fn seen(&self) -> Option<Wall> {
        let at: jiff::Timestamp = self.annotations.get(SEEN_ANNOTATION)?.parse().ok()?;
        i64::try_from(at.as_nanosecond()).ok().map(Wall)
    }

    /// Nothing that can be seen from outside tells it from the Pod of the manifest.
    fn looks_like(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        let identity = [POD_NAME, POD_NAMESPACE, POD_UID];
        let origin = [SOURCE_ANNOTATION, HASH_ANNOTATION, SEEN_ANNOTATION, MIRROR_ANNOTATION];
        same(Some(&self.labels), meta.labels.as_ref(), &identity)
            && same(Some(&self.annotations), meta.annotations.as_ref(), &origin)
            && self.containers.iter().all(|(name, hash)| hash.is_some() && *hash == hash_of(pod, name))
    }
}

/// Whether two maps are the same but for some keys.
fn same(a: Option<&BTreeMap<String, String>>, b: Option<&BTreeMap<String, String>>, except: &[&str]) -> bool {
    let (a, b) = (a.into_iter().flatten(), b.into_iter().flatten());
    let counts = |(key, _): &(&String, &String)| !except.contains(&key.as_str());
    a.filter(counts).eq(b.filter(counts))
}

/// What the container of that name would be made with; none if the manifest has none.
fn hash_of(pod: &Pod, name: &str) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.find(|c| c.name == name).map(container_hash)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::from_yaml;
    use api::pod::static_pod::{Origin, prepare};
    use proptest::prelude::*;

    const READ: Wall = Wall(1_700_000_000_000_000_000);

    fn manifest(more: &str) -> Pod {
        let text = format!(
            "metadata: {{name: etcd, namespace: kube-system, labels: {{tier: front}}, annotations: {{note: kept}}}}\n\
             spec:\n  initContainers: [{{name: first, image: 'first:1'}}]\n  \
             containers: [{{name: etcd, image: 'etcd:1'}}]\n{more}"
        );
        let given: Pod = from_yaml(&text);
        prepare(given, Origin::File("/m/etcd.yaml"), "n1", Wall::from_secs(1_800_000_000)).unwrap()
    }

    /// What another kubelet made of the plain manifest.
    fn theirs() -> Running {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Running {
            uid: "theirs".into(),
            labels: map(&[
                (POD_NAME, "etcd-n1"),
                (POD_NAMESPACE, "kube-system"),
                (POD_UID, "theirs"),
                ("tier", "front"),
            ]),
            annotations: map(&[
                (HASH_ANNOTATION, "theirs"),
                (SOURCE_ANNOTATION, "file"),
                (SEEN_ANNOTATION, "2023-11-15T00:13:20.000000000+02:00"),
                ("note", "kept"),
            ]),
            containers: vec![("etcd".into(), Some(api::pod::container_hash("etcd", "etcd:1")))],
            noted: None,
        }
    }

    fn adopted(pod: &Pod, touched: Option<Wall>, running: &[Running]) -> bool {
        predecessor(pod, touched, running).is_some()
    }

    #[test]
    fn an_untouched_manifest_keeps_the_pod_that_runs() {
        let pod = manifest("");
        let before = Some(Wall(READ.0 - 1));
        assert_eq!(predecessor(&pod, before, &[theirs()]).unwrap().uid.as_str(), "theirs");
        assert!(!adopted(&pod, Some(READ), &[theirs()]), "touched at the moment it was read, or later");
        assert!(!adopted(&pod, None, &[theirs()]), "nobody knows when");
        assert!(!adopted(&pod, before, &[]));
    }

    #[test]
    fn a_pod_once_taken_over_is_known_by_its_note() {
        let pod = manifest("");
        let noted = |uid: &str| Running { noted: Some(uid.into()), ..theirs() };
        let own = pod.metadata.uid.as_deref().unwrap();
        assert!(adopted(&pod, None, &[noted(own)]), "the same text needs no other proof");
        assert!(!adopted(&pod, None, &[noted("of another text")]));
        assert!(!adopted(&manifest("  hostNetwork: true"), None, &[noted(own)]), "every field counts");
    }

    #[test]
    fn what_differs_is_a_pod_of_its_own() {
        let touched = Some(Wall(READ.0 - 1));
        type Change = fn(&mut Running);
        let rows: &[(&str, Change)] = &[
            ("namespace", |r| drop(r.labels.insert(POD_NAMESPACE.into(), "default".into()))),
            ("name", |r| drop(r.labels.insert(POD_NAME.into(), "etcd-n2".into()))),
            ("label changed", |r| drop(r.labels.insert("tier".into(), "back".into()))),
            ("label removed from the manifest", |r| drop(r.labels.insert("more".into(), "x".into()))),
            ("label added to the manifest", |r| drop(r.labels.remove("tier"))),
            ("annotation", |r| drop(r.annotations.insert("note".into(), "changed".into()))),
            ("from a URL", |r| drop(r.annotations.insert(SOURCE_ANNOTATION.into(), "http".into()))),
            ("from the API server", |r| drop(r.annotations.insert(SOURCE_ANNOTATION.into(), "api".into()))),
            ("made by nobody known", |r| drop(r.annotations.remove(SOURCE_ANNOTATION))),
            ("hash of another", |r| drop(r.annotations.insert(HASH_ANNOTATION.into(), "x".into()))),
            ("no time", |r| drop(r.annotations.remove(SEEN_ANNOTATION))),
            ("bad time", |r| drop(r.annotations.insert(SEEN_ANNOTATION.into(), "yesterday".into()))),
            ("image", |r| r.containers[0].1 = Some(api::pod::container_hash("etcd", "etcd:2"))),
            ("a container of no kubelet", |r| r.containers[0].1 = None),
            ("a container the manifest lacks", |r| r.containers.push(("side".into(), Some(1)))),
            ("a stranger without a hash", |r| r.containers.push(("side".into(), None))),
        ];
        let pod = manifest("");
        for (what, change) in rows {
            let mut other = theirs();
            change(&mut other);
            assert!(!adopted(&pod, touched, &[other]), "{what}");
        }
    }

    #[test]
    fn our_own_pod_and_a_choice_of_two_are_left_alone() {
        let (pod, touched) = (manifest(""), Some(Wall(READ.0 - 1)));
        let own = pod.metadata.uid.as_deref().unwrap();
        let mut ours = Running { uid: own.into(), ..theirs() };
        ours.annotations.insert(HASH_ANNOTATION.into(), own.into());
        assert!(!adopted(&pod, touched, &[ours.clone()]), "nothing to take over");
        assert!(!adopted(&pod, touched, &[theirs(), ours]), "one of them is on its way out");
    }

    proptest! {
        /// Neighbours never matter, and a touch at or after the reading always does.
        #[test]
        fn only_the_pod_of_the_name_counts(
            names in prop::collection::vec("[a-c]{1,2}-n1", 0..6), at in 0usize..7, late in -5i64..5,
        ) {
            let neighbour = |name: &String| {
                let mut other = theirs();
                other.labels.insert(POD_NAME.into(), name.clone());
                other
            };
            let mut running: Vec<Running> = names.iter().map(neighbour).collect();
            running.insert(at.min(running.len()), theirs());
            let found = adopted(&manifest(""), Some(Wall(READ.0 + late)), &running);
            prop_assert_eq!(found, late < 0);
        }
    }
}
