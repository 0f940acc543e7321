//! Bootstrap tokens: by which a new node believes the cluster and is believed. Both controllers are off unless they are asked for.

mod signer;
mod token_cleaner;

pub(crate) use signer::BOOTSTRAP_SIGNER;
pub(crate) use token_cleaner::TOKEN_CLEANER;

use base::time::Wall;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::object::{Object, wall};

const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Where they count.
const SYSTEM: &str = "kube-system";

fn is_token(secret: &Object) -> bool {
    &*secret.meta.namespace == SYSTEM && secret.value()["type"] == TOKEN_TYPE
}

/// A member of `data`, decoded.
fn data(secret: &Value, key: &str) -> String {
    let text = secret["data"][key].as_str().and_then(|text| STANDARD.decode(text).ok());
    text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// When its time is over; one that nobody can read is over. None: never.
fn expiration(secret: &Value) -> Option<Wall> {
    let text = data(secret, "expiration");
    (!text.is_empty()).then(|| wall(&text).unwrap_or_default())
}
