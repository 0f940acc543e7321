//! Objects of every kind we read, with extremes in every field, and with junk in any: what upstream's decoder takes is read
//! without loss, and whatever stands there, the object is known by its name.
#![allow(clippy::unwrap_used)]

use api::json::{FromJson, KNOWN};
use base::rfc3339::Moment;
use base::rng::Rng;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodStatus,
    ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use schema::lenient;
use schema::types::{At, Shape};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The object as it would be written back, and what was lost of it.
type Reader = fn(&[u8]) -> serde_json::Result<(Value, Vec<String>)>;

fn reader<T: FromJson + Serialize>(json: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let reading = lenient::read::<T>(json)?;
    Ok((serde_json::to_value(&reading.object)?, reading.lost))
}

const READERS: &[(&str, Reader)] = &[
    ("CSIDriver", reader::<CSIDriver>),
    ("CSINode", reader::<CSINode>),
    ("CSIStorageCapacity", reader::<CSIStorageCapacity>),
    ("CertificateSigningRequest", reader::<CertificateSigningRequest>),
    ("ClusterTrustBundle", reader::<ClusterTrustBundle>),
    ("ConfigMap", reader::<ConfigMap>),
    ("ControllerRevision", reader::<ControllerRevision>),
    ("CronJob", reader::<CronJob>),
    ("DaemonSet", reader::<DaemonSet>),
    ("Deployment", reader::<Deployment>),
    ("EndpointSlice", reader::<EndpointSlice>),
    ("Endpoints", reader::<Endpoints>),
    ("HorizontalPodAutoscaler", reader::<HorizontalPodAutoscaler>),
    ("Job", reader::<Job>),
    ("Lease", reader::<Lease>),
    ("Namespace", reader::<Namespace>),
    ("Node", reader::<Node>),
    ("PersistentVolume", reader::<PersistentVolume>),
    ("PersistentVolumeClaim", reader::<PersistentVolumeClaim>),
    ("Pod", reader::<Pod>),
    ("PodDisruptionBudget", reader::<PodDisruptionBudget>),
    ("PodStatus", reader::<PodStatus>),
    ("ReplicaSet", reader::<ReplicaSet>),
    ("ReplicationController", reader::<ReplicationController>),
    ("ResourceQuota", reader::<ResourceQuota>),
    ("RuntimeClass", reader::<RuntimeClass>),
    ("Secret", reader::<Secret>),
    ("Service", reader::<Service>),
    ("ServiceAccount", reader::<ServiceAccount>),
    ("ServiceCIDR", reader::<ServiceCIDR>),
    ("StatefulSet", reader::<StatefulSet>),
    ("StorageClass", reader::<StorageClass>),
    ("TokenRequest", reader::<TokenRequest>),
    ("VolumeAttachment", reader::<VolumeAttachment>),
];

fn at(kind: &str) -> At<'static> {
    let name = KNOWN.iter().find(|name| name.rsplit('.').next() == Some(kind)).unwrap();
    At::named(name).unwrap()
}

const TIMES: &[&str] = &[
    "2026-01-02T03:04:05Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59.999999999999Z",
    "0001-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "2026-01-02T03:04:05.123456789012345678901234567890Z",
    "2026-01-02T03:04:05,5+14:00",
    "2026-06-30T23:59:60Z",
    // What a server writes that moved a time to UTC across the end of the calendar.
    "10000-01-01T13:59:59Z",
    "-0001-12-31T10:00:00Z",
];
const TEXTS: &[&str] =
    &["", "x", "null", "\u{0}\u{7f}\u{1f600}\u{202e}", "\"managedFields\":[", "9999-12-31T23:59:59Z"];
const QUANTITIES: &[&str] = &["0", "1", "-1", "1e3", "0.000000001", "99999999999999999999Ei", "1n", "+5"];

struct Made<'a>(&'a mut Rng);

impl Made<'_> {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.below(of.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// A value that upstream's decoder takes, extremes first.
    fn value(&mut self, at: At<'_>, depth: usize) -> Value {
        if self.chance(8) {
            return Value::Null;
        }
        match at.shape {
            Shape::String => self.one(TEXTS).into(),
            Shape::Bytes => self.one(&["", "aGk=", "aG\nk=\r\n"]).into(),
            Shape::Boolean => self.chance(50).into(),
            Shape::Int32 => self.one(&[0, 1, -1, i32::MAX, i32::MIN]).into(),
            Shape::Int64 => self.one(&[0, 1, -1, i64::MAX, i64::MIN]).into(),
            Shape::Number => self.one(&[json_number("0"), json_number("-1e300"), json_number("0.1")]).into(),
            Shape::IntOrString if self.chance(50) => self.one(TEXTS).into(),
            Shape::IntOrString => self.one(&[0, 80, i32::MAX, i32::MIN]).into(),
            Shape::Quantity if self.chance(50) => self.one(QUANTITIES).into(),
            Shape::Quantity => self.one(&[json_number("1"), json_number("0.5"), json_number("1e30")]).into(),
            Shape::Time | Shape::MicroTime => self.one(TIMES).into(),
            Shape::Raw | Shape::Any | Shape::Either(_) | Shape::FieldSet => {
                json!({"f:a": {".": {}, "b": [null, 1]}})
            }
            Shape::Map { value, .. } => {
                let entries =
                    (0..self.0.below(3)).map(|n| (format!("k{n}"), self.value(at.with(value), depth + 1)));
                Value::Object(entries.collect())
            }
            Shape::List { item, .. } => {
                Value::Array((0..self.0.below(3)).map(|_| self.value(at.with(item), depth + 1)).collect())
            }
            Shape::Object(id) => {
                let (known, mut map) = (at.types.get(*id), Map::new());
                let often = if depth < 3 { 90 } else { 40 };
                for field in known.fields.iter().filter(|f| !matches!(&*f.name, "apiVersion" | "kind")) {
                    if self.chance(often) {
                        map.insert(field.name.to_string(), self.value(at.with(&field.shape), depth + 1));
                    }
                }
                map.insert("unknownToUs".into(), json!({"deep": [[[null]]]}));
                Value::Object(map)
            }
        }
    }

    fn junk(&mut self) -> Value {
        let junk = [
            json!(null),
            json!(true),
            json!(-1.5),
            json!(u64::MAX),
            json!("junk"),
            json!([]),
            json!([[null, {"a": 1}]]),
            json!({}),
            json!({"metadata": 1, "items": [], "name": {}}),
        ];
        junk[self.0.below(junk.len() as u64) as usize].clone()
    }

    /// Puts junk somewhere below; what tells the object apart stays.
    fn spoil(&mut self, value: &mut Value, depth: usize) {
        if depth > 0 && self.chance(15) {
            *value = self.junk();
            return;
        }
        match value {
            Value::Object(map) => {
                let kept = ["name", "namespace", "uid", "deletionTimestamp", "metadata"];
                let keys: Vec<String> = map.keys().cloned().collect();
                for key in keys {
                    let is_kept = depth < 2 && kept.contains(&key.as_str());
                    if !is_kept && self.chance(30) {
                        self.spoil(&mut map[&key], depth + 1);
                    } else if key == "metadata" && depth == 0 {
                        let inside = map[&key].as_object_mut().unwrap();
                        for (_, value) in inside.iter_mut().filter(|(key, _)| !kept.contains(&key.as_str())) {
                            self.spoil(value, 1);
                        }
                    }
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|item| self.spoil(item, depth + 1)),
            _ => {}
        }
    }
}

fn json_number(text: &str) -> Number<'_> {
    Number(text)
}

#[derive(Clone, Copy)]
struct Number<'a>(&'a str);

impl From<Number<'_>> for Value {
    fn from(number: Number<'_>) -> Value {
        serde_json::from_str(number.0).unwrap()
    }
}

/// Everything that was said is there. Times are the same as far as the calendar goes.
fn covers(given: &Value, got: &Value, at: At<'_>, path: &str) -> Result<(), String> {
    let wrong = || Err(format!("{path}: {given} became {got}"));
    match (given, at.shape) {
        (Value::Null, _) | (_, Shape::Raw | Shape::Any | Shape::Either(_) | Shape::FieldSet) => Ok(()),
        (Value::Object(map), Shape::Object(id)) => {
            map.iter().try_for_each(|(key, value)| match at.types.get(*id).field(key) {
                Some(field) if key != "managedFields" => {
                    covers(value, &got[key], at.with(&field.shape), &format!("{path}.{key}"))
                }
                _ => Ok(()),
            })
        }
        (Value::Object(map), Shape::Map { value: shape, .. }) => map.iter().try_for_each(|(key, value)| {
            if got.get(key).is_none() {
                return Err(format!("{path}[{key}] is gone"));
            }
            covers(value, &got[key], at.with(shape), &format!("{path}[{key}]"))
        }),
        (Value::Array(list), Shape::List { item, .. }) => {
            let got = got.as_array().ok_or_else(|| format!("{path}: {got}"))?;
            if got.len() != list.len() {
                return Err(format!("{path}: {} of {} items", got.len(), list.len()));
            }
            let mut pairs = list.iter().zip(got).enumerate();
            pairs.try_for_each(|(i, (a, b))| covers(a, b, at.with(item), &format!("{path}[{i}]")))
        }
        (Value::String(text), Shape::Time | Shape::MicroTime) => {
            let (first, last) = (Moment::FIRST, Timestamp::MAX.as_second());
            let wanted = Moment::parse_lenient(text).unwrap().secs.clamp(first, last);
            let told = got.as_str().and_then(Moment::parse_lenient).map(|m| m.secs);
            if told == Some(wanted) { Ok(()) } else { wrong() }
        }
        (Value::Number(n), Shape::Quantity) => {
            // A float may be written in other words.
            let same = got.as_str().and_then(|text| text.parse::<f64>().ok()) == n.as_f64();
            if same { Ok(()) } else { wrong() }
        }
        (Value::String(text), Shape::Bytes) => {
            let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
            if got.as_str().unwrap_or_default() == plain { Ok(()) } else { wrong() }
        }
        // Our types leave out what is empty where upstream's do.
        (Value::Array(list), _) if list.is_empty() && got.is_null() => Ok(()),
        _ if given == got => Ok(()),
        _ => wrong(),
    }
}

fn object(kind: &str, rng: &mut Rng) -> Value {
    let mut object = loop {
        let made = Made(rng).value(at(kind), 0);
        if made.is_object() {
            break made;
        }
    };
    if at(kind).child("metadata").object().is_some() {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        let meta = object["metadata"].as_object_mut().unwrap();
        for (key, value) in [("name", "a"), ("uid", "u"), ("deletionTimestamp", "9999-12-31T23:59:59Z")] {
            meta.insert(key.into(), value.into());
        }
    }
    object
}

#[test]
fn every_kind_we_read_has_a_reader_here() {
    let kinds: Vec<&str> = KNOWN.iter().map(|name| name.rsplit('.').next().unwrap()).collect();
    let mut readers: Vec<&str> = READERS.iter().map(|(kind, _)| *kind).collect();
    readers.sort_unstable();
    let mut known = kinds.clone();
    known.sort_unstable();
    assert_eq!(readers, known);
    kinds.iter().for_each(|kind| _ = at(kind));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn odd_but_valid_objects_are_read_without_loss(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        for (kind, read) in READERS {
            let given = object(kind, &mut rng);
            let (got, lost) = read(given.to_string().as_bytes()).map_err(|e| TestCaseError::fail(format!("{kind}: {e} in {given}")))?;
            prop_assert!(lost.is_empty(), "{}: {:?} lost of {}", kind, lost, given);
            let covered = covers(&given, &got, at(kind), kind);
            prop_assert!(covered.is_ok(), "{:?}", covered);
        }
    }

    #[test]
    fn whatever_stands_in_an_object_it_is_known_by_its_name(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        for (kind, read) in READERS {
            let mut given = object(kind, &mut rng);
            Made(&mut rng).spoil(&mut given, 0);
            // A kind of its own name only.
            given.as_object_mut().unwrap().retain(|key, _| key != "kind" && key != "apiVersion");
            let (got, _) = read(given.to_string().as_bytes()).map_err(|e| TestCaseError::fail(format!("{kind}: {e} in {given}")))?;
            if given["metadata"].is_object() && *kind != "PodStatus" {
                prop_assert_eq!((&got["metadata"]["name"], &got["metadata"]["uid"]), (&json!("a"), &json!("u")));
                prop_assert!(got["metadata"]["deletionTimestamp"].is_string(), "{}", given);
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..2000, seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        for (kind, read) in READERS.iter().take(3) {
            let _ = read(&bytes);
            let mut text = object(kind, &mut rng).to_string().into_bytes();
            text.truncate(cut);
            let _ = read(&text);
            let at = rng.below(text.len().max(1) as u64) as usize;
            let end = text.len().min(at + bytes.len());
            text.splice(at.min(end)..end, bytes.iter().copied());
            let _ = read(&text);
        }
    }
}

#[test]
fn rows() {
    let read = |given: &str| {
        let reading = lenient::read::<Pod>(given.as_bytes()).unwrap();
        (serde_json::to_value(&reading.object).unwrap(), reading.lost)
    };
    for (given, at, want) in [
        (r#"{"spec":{"hostNetwork":null,"nodeName":"n"}}"#, "/spec/nodeName", json!("n")),
        (
            r#"{"spec":{"terminationGracePeriodSeconds":3.0e1}}"#,
            "/spec/terminationGracePeriodSeconds",
            json!(30),
        ),
        (
            r#"{"metadata":{"labels":{"a":null}},"status":{"startTime":"x9"}}"#,
            "/metadata/labels/a",
            json!(""),
        ),
        (r#"{"spec":{"nodeName":"a\ud800b"}}"#, "/spec/nodeName", json!("a\u{fffd}\u{fffd}\u{fffd}b")),
        (
            r#"{"spec":{"nodeName":"a","nodeName":"b","priority":null,"priority":1.0}}"#,
            "/spec/nodeName",
            json!("b"),
        ),
        (
            r#"{"metadata":{"deletionTimestamp":7}}"#,
            "/metadata/deletionTimestamp",
            json!("0001-01-01T00:00:00Z"),
        ),
        (
            r#"{"metadata":{"creationTimestamp":"9999-12-31T23:59:59Z"}}"#,
            "/metadata/creationTimestamp",
            json!("9999-12-30T22:00:00Z"),
        ),
    ] {
        assert_eq!(read(given).0.pointer(at), Some(&want), "{given}");
    }
    for (given, lost) in [
        (r#"{"spec":{"containers":[{"name":7},8]}}"#, vec!["spec.containers[0].name", "spec.containers[1]"]),
        (r#"{"spec":[]}"#, vec!["spec"]),
        (r#"{"status":{"conditions":[7,{"lastTransitionTime":[]}]}}"#, vec![]),
        (r#"{"metadata":{"deletionTimestamp":"soon"}}"#, vec!["metadata.deletionTimestamp"]),
    ] {
        assert_eq!(read(given).1, lost, "{given}");
    }
    // A condition without a time, and a CSR condition too.
    let service = lenient::read::<Service>(
        br#"{"status":{"conditions":[{"type":"A","lastTransitionTime":null},{"type":"B"},null]}}"#,
    );
    let service = service.unwrap().into_whole().unwrap();
    assert_eq!(service.status.unwrap().conditions.unwrap().len(), 3);
    for nothing in [
        "",
        "null",
        "[]",
        "7",
        r#"{"kind":"Status"}"#,
        r#"{"apiVersion":"v2","spec":{"priority":null}}"#,
        r#"{"a":}"#,
    ] {
        assert!(lenient::read::<Pod>(nothing.as_bytes()).is_err(), "{nothing}");
    }
}
