//! StorageObjectInUseProtection: volumes and claims are not removed while they are in use.

use serde_json::{Value, json};

use super::{Operation, Review};
use crate::doc;

pub fn mutate(review: &Review<'_>, object: &mut Value) {
    if review.operation != Operation::Create {
        return;
    }
    let finalizer = if review.is_on("", "persistentvolumeclaims") {
        "kubernetes.io/pvc-protection"
    } else if review.is_on("", "persistentvolumes") {
        "kubernetes.io/pv-protection"
    } else {
        return;
    };
    if doc::list(object, "metadata.finalizers").iter().any(|f| f == finalizer) {
        return;
    }
    match doc::at_mut(object, "metadata.finalizers").and_then(Value::as_array_mut) {
        Some(finalizers) => finalizers.push(finalizer.into()),
        None => doc::set(object, "metadata.finalizers", json!([finalizer])),
    }
}
