//! Objects read from JSON and written as JSON, each by code that exists once.
//!
//! What another server wrote is read leniently ([`FromJson::read`], docs/decisions/015.md).
//!
//! The decoder of a type is generated anew in every crate that asks for it and for every kind of input, and a Pod's is some
//! hundred kilobytes of program and seconds of building. So callers name these two traits, and the code behind them is
//! generated where the trait is implemented.

use std::borrow::Cow;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, PodStatus,
    ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// What can be read from JSON. Implemented with [`from_json!`](crate::from_json).
pub trait FromJson: Sized {
    fn from_json(json: &[u8]) -> serde_json::Result<Self>;

    /// The same of what another server wrote. An object that does not decode is mended by what is known of its type;
    /// types of our own have nobody to mend them.
    fn read(json: &[u8], _mend: Mend) -> serde_json::Result<Reading<Self>> {
        Self::from_json(json).map(Reading::whole)
    }
}

/// What was read of an object that another server wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading<T> {
    pub object: T,
    /// Places of which the object says nothing though something stands there: nobody could read it.
    pub lost: Vec<String>,
}

/// An object in a form that its type can read, and the places that are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    pub json: Vec<u8>,
    pub lost: Vec<String>,
}

/// Brings a document into the form of the type of that name (`io.k8s.api.core.v1.Pod`); none if it has nothing of it.
pub type Mend = fn(&str, &[u8]) -> Option<Mended>;

/// What can be written as JSON: plain data, with nothing in it that cannot be written.
pub trait ToJson {
    fn to_json(&self) -> Vec<u8>;
    fn to_value(&self) -> Value;
}

/// The objects of a list.
#[derive(Debug)]
pub struct List<T> {
    pub items: Vec<T>,
}

/// Implements [`FromJson`](json::FromJson) for types that serde can read.
#[macro_export]
macro_rules! from_json {
    ($($type:ty),+ $(,)?) => {
        $(impl $crate::json::FromJson for $type {
            fn from_json(json: &[u8]) -> serde_json::Result<Self> {
                serde_json::from_slice(json)
            }
        })+
    };
}

/// The same for types of Kubernetes, with the names under which they are known.
macro_rules! known {
    ($($type:ty = $name:literal),+ $(,)?) => {
        $(impl FromJson for $type {
            fn from_json(json: &[u8]) -> serde_json::Result<Self> {
                serde_json::from_slice(json)
            }

            fn read(json: &[u8], mend: Mend) -> serde_json::Result<Reading<Self>> {
                let json = without_managed_fields(json);
                Self::from_json(&json).map(Reading::whole).or_else(|error| {
                    let Some(Mended { json, lost }) = mend($name, &json) else { return Err(error) };
                    Self::from_json(&json).map(|object| Reading { object, lost })
                })
            }
        })+

        /// The names of all of them.
        pub const KNOWN: &[&str] = &[$($name),+];
    };
}

macro_rules! to_json {
    ($($type:ty),+ $(,)?) => {
        $(impl ToJson for $type {
            fn to_json(&self) -> Vec<u8> {
                serde_json::to_vec(self).unwrap_or_default()
            }

            fn to_value(&self) -> Value {
                serde_json::to_value(self).unwrap_or_default()
            }
        })+
    };
}

from_json!(Value);

known!(
    CSIDriver = "io.k8s.api.storage.v1.CSIDriver",
    CSINode = "io.k8s.api.storage.v1.CSINode",
    CSIStorageCapacity = "io.k8s.api.storage.v1.CSIStorageCapacity",
    CertificateSigningRequest = "io.k8s.api.certificates.v1.CertificateSigningRequest",
    ClusterTrustBundle = "io.k8s.api.certificates.v1beta1.ClusterTrustBundle",
    ConfigMap = "io.k8s.api.core.v1.ConfigMap",
    ControllerRevision = "io.k8s.api.apps.v1.ControllerRevision",
    CronJob = "io.k8s.api.batch.v1.CronJob",
    DaemonSet = "io.k8s.api.apps.v1.DaemonSet",
    Deployment = "io.k8s.api.apps.v1.Deployment",
    EndpointSlice = "io.k8s.api.discovery.v1.EndpointSlice",
    Endpoints = "io.k8s.api.core.v1.Endpoints",
    HorizontalPodAutoscaler = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    Job = "io.k8s.api.batch.v1.Job",
    Lease = "io.k8s.api.coordination.v1.Lease",
    Namespace = "io.k8s.api.core.v1.Namespace",
    Node = "io.k8s.api.core.v1.Node",
    PersistentVolume = "io.k8s.api.core.v1.PersistentVolume",
    PersistentVolumeClaim = "io.k8s.api.core.v1.PersistentVolumeClaim",
    Pod = "io.k8s.api.core.v1.Pod",
    PodDisruptionBudget = "io.k8s.api.policy.v1.PodDisruptionBudget",
    PodStatus = "io.k8s.api.core.v1.PodStatus",
    ReplicaSet = "io.k8s.api.apps.v1.ReplicaSet",
    ReplicationController = "io.k8s.api.core.v1.ReplicationController",
    ResourceQuota = "io.k8s.api.core.v1.ResourceQuota",
    RuntimeClass = "io.k8s.api.node.v1.RuntimeClass",
    Secret = "io.k8s.api.core.v1.Secret",
    Service = "io.k8s.api.core.v1.Service",
    ServiceAccount = "io.k8s.api.core.v1.ServiceAccount",
    ServiceCIDR = "io.k8s.api.networking.v1.ServiceCIDR",
    StatefulSet = "io.k8s.api.apps.v1.StatefulSet",
    StorageClass = "io.k8s.api.storage.v1.StorageClass",
    TokenRequest = "io.k8s.api.authentication.v1.TokenRequest",
    VolumeAttachment = "io.k8s.api.storage.v1.VolumeAttachment",
);

to_json!(CSINode, Lease, Node, Pod, PodSpec, PodStatus);

impl<T: FromJson> FromJson for Vec<T> {
    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        let items: Vec<&RawValue> = serde_json::from_slice(json)?;
        items.into_iter().map(|item| T::from_json(item.get().as_bytes())).collect()
    }

    fn read(json: &[u8], mend: Mend) -> serde_json::Result<Reading<Self>> {
        let items: Vec<&RawValue> = serde_json::from_slice(json)?;
        let mut all = Reading::whole(Vec::with_capacity(items.len()));
        for (i, item) in items.into_iter().enumerate() {
            let Reading { object, lost } = T::read(item.get().as_bytes(), mend)?;
            all.object.push(object);
            all.lost.extend(lost.into_iter().map(|place| format!("items[{i}].{place}")));
        }
        Ok(all)
    }
}

impl<T: FromJson> FromJson for List<T> {
    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        let items = items(json)?;
        let items = items.map_or_else(|| Ok(Vec::new()), |items| Vec::from_json(items.get().as_bytes()))?;
        Ok(List { items })
    }

    fn read(json: &[u8], mend: Mend) -> serde_json::Result<Reading<Self>> {
        let Some(items) = items(json)? else { return Ok(Reading::whole(List { items: Vec::new() })) };
        let Reading { object, lost } = Vec::read(items.get().as_bytes(), mend)?;
        Ok(Reading { object: List { items: object }, lost })
    }
}

fn items(json: &[u8]) -> serde_json::Result<Option<&RawValue>> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        items: Option<&'a RawValue>,
    }
    serde_json::from_slice(json).map(|Raw { items }| items)
}

impl<T> Reading<T> {
    fn whole(object: T) -> Reading<T> {
        Reading { object, lost: Vec::new() }
    }

    /// The object, if all of it was read.
    #[must_use]
    pub fn into_whole(self) -> Option<T> {
        self.lost.is_empty().then_some(self.object)
    }
}

/// The document with nulls where it tells who owns which field: often more than all the rest, of any depth, and of no use
/// to a reader. A list of that name stands nowhere else in the types we read.
#[must_use]
pub fn without_managed_fields(json: &[u8]) -> Cow<'_, [u8]> {
    const KEY: &str = "\"managedFields\"";
    let Ok(text) = std::str::from_utf8(json) else { return Cow::Borrowed(json) };
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(KEY) {
        let is_key = !rest[..at].ends_with('\\');
        let (before, value) = rest.split_at(at + KEY.len());
        let list = value.trim_start().strip_prefix(':').map(str::trim_start).filter(|_| is_key);
        let end = list.and_then(end_of_list);
        out.extend_from_slice(before.as_bytes());
        rest = value;
        if let (Some(list), Some(end)) = (list, end) {
            out.extend_from_slice(b":null");
            rest = &list[end..];
        }
    }
    if out.is_empty() {
        return Cow::Borrowed(json);
    }
    out.extend_from_slice(rest.as_bytes());
    Cow::Owned(out)
}

/// Where the list ends with which the text begins.
fn end_of_list(text: &str) -> Option<usize> {
    if !text.starts_with('[') {
        return None;
    }
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_whole_or_not_at_all() {
        let pods = |json: &str| List::<Pod>::from_json(json.as_bytes()).map(|list| list.items);
        let named =
            pods(r#"{"kind":"PodList","items":[{"metadata":{"name":"a"}}, {"metadata":{"name":"b"}}]}"#);
        let names: Vec<_> = named.unwrap().into_iter().filter_map(|pod| pod.metadata.name).collect();
        assert_eq!(names, ["a", "b"]);
        for empty in [r#"{"items":[]}"#, r#"{"items":null}"#, "{}"] {
            assert!(pods(empty).unwrap().is_empty(), "{empty}");
        }
        for bad in ["[]", r#"{"items":[{"metadata":1}]}"#, r#"{"items":{}}"#, r#"{"items":[]"#] {
            assert!(pods(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn who_owns_which_field_is_passed_over() {
        for (given, want) in [
            (r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"a"}}"#),
            (
                r#"{"metadata":{"managedFields":[{"a":"]\"]"},[[]]],"name":"a"}}"#,
                r#"{"metadata":{"managedFields":null,"name":"a"}}"#,
            ),
            (
                r#"{"m":{"managedFields" : [ ]},"n":{"managedFields":[1]}}"#,
                r#"{"m":{"managedFields":null},"n":{"managedFields":null}}"#,
            ),
            // No list, no key, or no end: left alone.
            (r#"{"data":{"managedFields":"[x]"}}"#, r#"{"data":{"managedFields":"[x]"}}"#),
            (r#"{"a":"\"managedFields\":[1]"}"#, r#"{"a":"\"managedFields\":[1]"}"#),
            (r#"{"a\"managedFields":[1]}"#, r#"{"a\"managedFields":[1]}"#),
            (r#"["managedFields",[1]]"#, r#"["managedFields",[1]]"#),
            (r#"{"managedFields":[1"#, r#"{"managedFields":[1"#),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_managed_fields(given.as_bytes())), want);
        }
        // However deep it is, and whatever stands in it.
        let deep = format!(
            r#"{{"metadata":{{"name":"a","managedFields":[{{"time":"9999-12-31T23:59:59Z","x":{}1{}}}]}}}}"#,
            "[".repeat(1000),
            "]".repeat(1000)
        );
        let nobody: Mend = |_, _| None;
        let read = Pod::read(deep.as_bytes(), nobody).unwrap().into_whole().unwrap();
        assert_eq!(read.metadata.name.as_deref(), Some("a"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("a".into());
        assert_eq!(Pod::from_json(&pod.to_json()).unwrap(), pod);
        assert_eq!(pod.to_value()["metadata"]["name"], "a");
    }
}
