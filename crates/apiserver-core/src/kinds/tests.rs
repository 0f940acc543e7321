//! What holds for every kind.

use std::collections::{BTreeMap, BTreeSet};

use api::field::FieldErrors;
use base::time::Wall;
use proptest::prelude::*;
use schema::types::{At, Shape};
use serde_json::{Map, Value, json};

use super::{
    all, certificate_signing_request, custom_resource_definition, definition_names, meta, pod, scale,
    selector,
};
use crate::kind::{Kind, Verb};

/// Documents tried per kind.
const TRIES: u64 = 40;
const DEPTH: usize = 8;

#[test]
fn names_are_unique_within_a_group() {
    let mut taken: BTreeMap<(String, String), (String, String)> = BTreeMap::new();
    for kind in all() {
        let mut names: BTreeSet<String> = BTreeSet::new();
        names.extend([kind.plural.to_string(), kind.singular.to_string()]);
        names.extend(kind.short_names.iter().map(ToString::to_string));
        for name in names {
            let this = (kind.kind.to_string(), kind.version.to_string());
            let owner = taken.insert((kind.group.to_string(), name.clone()), this.clone());
            // Another version of the same kind has the same names.
            let shared = owner.as_ref().is_some_and(|o| o.0 == this.0 && o.1 != this.1);
            assert!(owner.is_none() || shared, "{name} of {}", kind.resource_name());
        }
        let subresources: BTreeSet<&str> = kind.subresources.iter().map(|s| s.name).collect();
        assert_eq!(subresources.len(), kind.subresources.len(), "{}", kind.resource_name());
    }
}

#[test]
fn every_kind_has_a_type_and_a_place() {
    for kind in all() {
        let name = kind.type_name.as_deref().unwrap_or_default();
        let here = At::named(name);
        assert!(here.is_some(), "{name}");
        let same = At::kind(&kind.group, &kind.version, &kind.kind);
        assert_eq!(same.map(|at| at.shape), here.map(|at| at.shape), "{name}");
        assert_eq!(kind.is_stored(), kind.verbs.contains(&Verb::Watch), "{name}");
        let has_status = here.and_then(At::object).is_some_and(|t| t.field("status").is_some());
        assert_eq!(kind.has_status(), has_status && kind.is_stored(), "{name}");
        assert_eq!(kind.subresource("scale").is_some(), kind.strategy.scale().is_some(), "{name}");
        // Whoever is named first keeps the objects as they are; the others convert.
        let first = all().into_iter().find(|k| k.storage == kind.storage);
        let converts = kind.is_stored() && first.is_some_and(|f| f.api_version() != kind.api_version());
        assert_eq!(kind.strategy.converts(), converts, "{name}");
    }
}

/// Go clients ask for it, and are only answered otherwise where upstream has none either.
#[test]
fn every_kind_has_a_protobuf_form() {
    for kind in all() {
        let at = kind.type_name.as_deref().and_then(At::named);
        assert!(at.is_some_and(schema::protobuf::is_known), "{}", kind.resource_name());
        let list = At::kind(&kind.group, &kind.version, &kind.list_kind);
        assert!(
            !kind.is_stored() || list.is_some_and(schema::protobuf::is_known),
            "{}",
            kind.resource_name()
        );
    }
}

#[test]
fn there_is_a_cell_for_every_column() {
    for kind in all() {
        let columns = kind.strategy.columns();
        let cells = kind.strategy.cells(&json!({}), Wall::from_secs(0));
        assert_eq!(columns.len(), cells.len(), "{}", kind.resource_name());
        assert_eq!(columns.iter().filter(|c| c.name == "Name").count(), 1, "{}", kind.resource_name());
        for (column, cell) in columns.iter().zip(&cells) {
            match &*column.kind {
                "integer" => assert!(cell.is_i64() || cell.is_u64(), "{} {}", kind.kind, column.name),
                "boolean" => assert!(cell.is_boolean() || cell.is_string(), "{} {}", kind.kind, column.name),
                _ => {}
            }
        }
    }
}

#[test]
fn defaulting_twice_is_defaulting_once() {
    each_document(|kind, object, _| {
        let mut once = object.clone();
        kind.strategy.set_defaults(&mut once);
        let mut twice = once.clone();
        kind.strategy.set_defaults(&mut twice);
        assert_eq!(once, twice, "{}", kind.resource_name());
    });
}

#[test]
fn an_object_that_stays_the_same_may_be_written_again() {
    each_document(|kind, object, _| {
        let mut object = object.clone();
        kind.strategy.set_defaults(&mut object);
        let mut errors = FieldErrors::default();
        kind.strategy.validate(&object, &mut errors);
        if errors.is_empty() {
            assert!(!kind.strategy.is_new_generation(&object, &object), "{}", kind.resource_name());
            kind.strategy.validate_update(&object, &object, &mut errors);
            assert_eq!(errors.to_string(), "[]", "{} {object}", kind.resource_name());
        }
    });
}

#[test]
fn what_is_stored_comes_back() {
    each_document(|kind, object, _| {
        let store_and_show = |mut object: Value| {
            kind.strategy.write_as_stored(&mut object);
            kind.strategy.show_as_here(&mut object);
            crate::doc::remove(&mut object, "apiVersion");
            object
        };
        let mut shown = object.clone();
        kind.strategy.set_defaults(&mut shown);
        crate::doc::remove(&mut shown, "apiVersion");
        // What autoscaling/v1 has no field for it shows in annotations, also where nobody wrote them there.
        if kind.group == "autoscaling" {
            shown = store_and_show(shown);
        }
        assert_eq!(store_and_show(shown.clone()), shown, "{}", kind.resource_name());
    });
}

#[test]
fn no_document_of_a_kind_brings_it_down() {
    each_document(exercise);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_document_at_all_brings_a_kind_down(one in any_json(), other in any_json()) {
        for kind in all() {
            exercise(&kind, &one, &other);
        }
    }
}

/// Calls everything a strategy can be asked. The answers do not matter.
fn exercise(kind: &Kind, object: &Value, other: &Value) {
    let strategy = &kind.strategy;
    let mut errors = FieldErrors::default();
    let mut new = object.clone();
    strategy.set_defaults(&mut new);
    strategy.prepare_create(&mut new);
    meta::validate(kind, &new, &mut errors);
    strategy.validate(&new, &mut errors);
    for (now, before) in [(&new, other), (other, &new)] {
        let mut changed = now.clone();
        strategy.prepare_update(&mut changed, before);
        meta::validate_update(kind, &changed, before, &mut errors);
        strategy.validate_update(&changed, before, &mut errors);
        let mut status = now.clone();
        strategy.prepare_status(&mut status, before);
        strategy.validate_status(&status, before, &mut errors);
        strategy.is_new_generation(now, before);
        strategy.warnings(now, Some(before));
    }
    strategy.warnings(&new, None);
    strategy.grace(&new, None);
    strategy.is_held(&new);
    strategy.begin_deletion(&mut new.clone());
    for name in ["spec.nodeName", "status.phase", "type", "x.y", ""] {
        assert_eq!(
            strategy.field(name, &new).is_some(),
            strategy.field(name, &Value::Null).is_some(),
            "{name}"
        );
    }
    let cells = strategy.cells(&new, Wall::from_secs(0));
    assert_eq!(cells.len(), strategy.columns().len());
    if let Some(paths) = strategy.scale() {
        let document = scale::read(&new, &paths);
        scale::validate(&document, &mut errors);
        scale::write(&mut new.clone(), &document, &paths);
    }
    beside_the_strategy(object, other, &mut errors);
    let _ = errors.to_string();
}

fn beside_the_strategy(object: &Value, other: &Value, errors: &mut FieldErrors) {
    let mut new = object.clone();
    pod::change::prepare_ephemeral(&mut new, other);
    pod::change::validate_ephemeral(&new, other, errors);
    pod::prepare_resize(&mut new, other);
    pod::validate_resize(&new, other, errors);
    certificate_signing_request::prepare_approval(&mut new, other);
    certificate_signing_request::stamp_conditions(&mut new, other, Wall::from_secs(0));
    certificate_signing_request::validate_approval(&new, other, errors);
    let verdict = definition_names::Taken::default().judge(&new);
    custom_resource_definition::establish(&mut new, &verdict, Wall::from_secs(0));
    let _ = selector::to_text(object);
    let _ = selector::matches(object, other);
}

fn each_document(check: impl Fn(&Kind, &Value, &Value)) {
    for kind in all() {
        let Some(at) = kind.type_name.as_deref().and_then(At::named) else { continue };
        for seed in 0..TRIES {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
            let (one, other) = (document(&mut dice, at, DEPTH), document(&mut dice, at, DEPTH));
            check(&kind, &one, &other);
        }
    }
}

/// A small generator that needs no seed from outside.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A document as the schema would let it through.
fn document(dice: &mut Dice, at: At<'_>, depth: usize) -> Value {
    let words = [
        "",
        "a",
        "web",
        "Always",
        "Never",
        "None",
        "TCP",
        "ClusterIP",
        "In",
        "Exists",
        "10.0.0.1",
        "25%",
        "a/b",
        "x.y",
    ];
    let word = |dice: &mut Dice| Value::from(words[dice.below(words.len() as u64) as usize]);
    let number = |dice: &mut Dice| Value::from([-1, 0, 1, 2, 80, 600, i32::MAX][dice.below(7) as usize]);
    match at.shape {
        Shape::Boolean => (dice.below(2) == 0).into(),
        Shape::Int32 | Shape::Int64 | Shape::Number => number(dice),
        Shape::IntOrString if dice.below(2) == 0 => number(dice),
        Shape::String | Shape::IntOrString => word(dice),
        Shape::Bytes => ["", "eA==", "e30="][dice.below(3) as usize].into(),
        Shape::Quantity => ["0", "1", "500m", "1Gi", "-1"][dice.below(5) as usize].into(),
        Shape::Time | Shape::MicroTime => "2026-01-02T03:04:05Z".into(),
        Shape::Map { .. } | Shape::List { .. } | Shape::Object(_) if depth == 0 => Value::Null,
        Shape::Map { value, .. } => {
            let entries =
                (0..dice.below(3)).map(|i| (format!("k{i}"), document(dice, at.with(value), depth - 1)));
            Value::Object(entries.collect())
        }
        Shape::List { item, .. } => {
            (0..dice.below(3)).map(|_| document(dice, at.with(item), depth - 1)).collect()
        }
        _ => match at.object() {
            Some(kind) => {
                let mut map = Map::new();
                for field in &kind.fields {
                    // Few of the many fields, or almost nothing ever passes validation.
                    if field.required || dice.below(4) == 0 {
                        let value = document(dice, at.with(&field.shape), depth.saturating_sub(1));
                        if !value.is_null() {
                            map.insert(field.name.to_string(), value);
                        }
                    }
                }
                Value::Object(map)
            }
            None => json!({"any": word(dice)}),
        },
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z0-9./:%é-]{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("status"),
        Just("template"),
        Just("containers"),
        Just("ports"),
        Just("rules"),
        Just("selector"),
        Just("matchLabels"),
        Just("conditions"),
        Just("subsets"),
        Just("type"),
        Just("name"),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6).prop_map(|entries| entries
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}
