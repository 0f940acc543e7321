//! Objects read from JSON and written as JSON, each by code that exists once.
//!
//! The decoder of a type is generated anew in every crate that asks for it and for every kind of input, and a Pod's is some
//! hundred kilobytes of program and seconds of building. So callers name these two traits, and the code behind them is
//! generated where the trait is implemented.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, PodStatus, Secret, Service,
    ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// What can be read from JSON. Implemented with [`from_json!`](crate::from_json).
pub trait FromJson: Sized {
    fn from_json(json: &[u8]) -> serde_json::Result<Self>;
}

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

from_json!(
    CSIDriver,
    CSINode,
    CertificateSigningRequest,
    ClusterTrustBundle,
    ConfigMap,
    EndpointSlice,
    Lease,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodStatus,
    RuntimeClass,
    Secret,
    Service,
    ServiceAccount,
    ServiceCIDR,
    TokenRequest,
    Value,
    VolumeAttachment,
);

to_json!(CSINode, Lease, Node, Pod, PodSpec, PodStatus);

impl<T: FromJson> FromJson for Vec<T> {
    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        let items: Vec<&RawValue> = serde_json::from_slice(json)?;
        items.into_iter().map(|item| T::from_json(item.get().as_bytes())).collect()
    }
}

impl<T: FromJson> FromJson for List<T> {
    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            #[serde(borrow)]
            items: Option<&'a RawValue>,
        }
        let Raw { items } = serde_json::from_slice(json)?;
        let items =
            items.map_or_else(|| Ok(Vec::new()), |items| FromJson::from_json(items.get().as_bytes()))?;
        Ok(List { items })
    }
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
    fn what_is_written_is_read_again() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("a".into());
        assert_eq!(Pod::from_json(&pod.to_json()).unwrap(), pod);
        assert_eq!(pod.to_value()["metadata"]["name"], "a");
    }
}
