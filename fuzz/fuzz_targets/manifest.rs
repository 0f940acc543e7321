//! Any bytes as a manifest: a valid Pod or an error, never a panic.
#![no_main]

use api::pod::static_pod::{Origin, prepare};
use api::pod::{Manifest, decode, validate};
use base::time::Wall;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let pods = match decode(bytes, &mut |_| {}) {
        Ok(Manifest::Pod(pod)) => vec![*pod],
        Ok(Manifest::List(pods)) => pods,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    for pod in pods {
        match prepare(pod, Origin::File("/m/p.yaml"), "node", Wall(1)) {
            Ok(pod) => assert!(validate(&pod).is_empty()),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
});
