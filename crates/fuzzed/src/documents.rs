//! Objects that clients send, and what they ask to be done to them.

use api::field::{FieldErrors, Path};
use schema::apply::{Set, Writer, apply, update};
use schema::custom::{CustomType, check_schema};
use schema::decode::{conform, parse};
use schema::jsonpath::JsonPath;
use schema::patch::{apply_json, apply_merge, apply_strategic};
use schema::protobuf;
use schema::types::At;

const KINDS: &[(&str, &str)] = &[
    ("", "Pod"),
    ("apps", "Deployment"),
    ("", "Service"),
    ("", "Secret"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
];

/// Any two documents as an object and what is done to it: decode, patch, apply, prune, validate, to protobuf and back.
///
/// The first byte chooses the kind, the rest is split at the first zero byte.
pub fn documents(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let (group, kind) = KINDS[usize::from(*choice) % KINDS.len()];
    let Some(at) = At::kind(group, "v1", kind) else { return };
    let find = |version: &str, kind: &str| {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        At::kind(group, version, kind)
    };
    let _ = protobuf::decode(rest, find);
    let mut halves = rest.splitn(2, |b| *b == 0);
    let (one, two) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
    if let Ok(path) =
        std::str::from_utf8(one).map_err(drop).and_then(|text| JsonPath::parse(text).map_err(drop))
        && let Ok(object) = parse(two)
    {
        let _ = path.find(&object.value);
    }
    let (Ok(one), Ok(two)) = (parse(one), parse(two)) else { return };
    let (one, two) = (one.value, two.value);
    let mut live = one.clone();
    let is_object = conform(&mut live, at).is_ok() && live.is_object();
    if is_object {
        let mut again = live.clone();
        assert_eq!(conform(&mut again, at), Ok(Vec::new()));
        assert_eq!(again, live);
        if let Ok(bytes) = protobuf::encode(&live, protobuf::Form::Whole(at)) {
            // What is no Kubernetes version or kind any more is not found again.
            let _ = protobuf::decode(&bytes, find);
        }
    }
    let _ = apply_json(&mut one.clone(), &two);
    let _ = apply_strategic(&mut one.clone(), two.clone(), at);
    apply_merge(&mut one.clone(), &two);
    let ignored = Set::of(&[&["status"]]);
    let writer = Writer {
        manager: "fuzz",
        api_version: two["apiVersion"].as_str().unwrap_or("v1"),
        subresource: "",
        ignored: &ignored,
        now: "2024-01-01T00:00:00Z",
    };
    let live = Some(&live).filter(|_| is_object);
    let _ = apply(live, &two, at, &writer, true);
    let mut new = two.clone();
    if conform(&mut new, at).is_ok() {
        update(live, &mut new, at, &writer);
    }
    let mut errors = FieldErrors::default();
    check_schema(&one, &Path::new("schema"), &mut errors);
    let custom = CustomType::new(&one);
    let mut object = two;
    if custom.conform(&mut object).is_ok() {
        custom.set_defaults(&mut object);
        custom.validate(&object, None, &mut errors);
    }
}

/// Any bytes as an object in its protobuf form.
pub fn protobuf(bytes: &[u8]) {
    let find = |version: &str, kind: &str| {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        At::kind(group, version, kind)
    };
    let _ = protobuf::decode(bytes, find);
}

/// Two documents, the second as each kind of patch of the first. A patch that was refused has changed what it was given a copy
/// of, and nothing else.
pub fn patches(bytes: &[u8]) {
    let mut halves = bytes.splitn(2, |b| *b == 0);
    let (object, patch) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
    let (Ok(object), Ok(patch)) = (parse(object), parse(patch)) else { return };
    let (object, patch) = (object.value, patch.value);
    let _ = apply_json(&mut object.clone(), &patch);
    let mut merged = object.clone();
    apply_merge(&mut merged, &patch);
    let mut twice = merged.clone();
    apply_merge(&mut twice, &patch);
    assert_eq!(twice, merged, "a merge patch changes nothing when it is repeated");
    for (group, kind) in KINDS {
        let Some(at) = At::kind(group, "v1", kind) else { continue };
        let _ = apply_strategic(&mut object.clone(), patch.clone(), at);
    }
}
