//! Checks many kinds share, in upstream's words.

use api::field::{FieldErrors, Path};
use api::names;
use serde_json::Value;

use crate::doc::{self, Field};

pub(super) const IMMUTABLE: &str = "field is immutable";
pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";

/// A required word out of a few.
pub(super) fn one_of(errors: &mut FieldErrors, field: &Field<'_>, supported: &[&str]) {
    match field.text() {
        "" => errors.required(&field.at, ""),
        word if supported.contains(&word) => {}
        word => errors.unsupported(&field.at, word, supported),
    }
}

/// A word out of a few, where there is one.
pub(super) fn one_of_if_set(errors: &mut FieldErrors, field: &Field<'_>, supported: &[&str]) {
    if field.is_set() && !supported.contains(&field.text()) {
        errors.unsupported(&field.at, field.text(), supported);
    }
}

pub(super) fn required(errors: &mut FieldErrors, field: &Field<'_>) {
    if doc::is_unset(field.value) {
        errors.required(&field.at, "");
    }
}

pub(super) fn non_negative(errors: &mut FieldErrors, field: &Field<'_>) {
    if let Some(number) = field.int().filter(|n| *n < 0) {
        errors.invalid(&field.at, number, NEGATIVE);
    }
}

pub(super) fn positive(errors: &mut FieldErrors, field: &Field<'_>) {
    if let Some(number) = field.int().filter(|n| *n <= 0) {
        errors.invalid(&field.at, number, "must be greater than 0");
    }
}

/// A text that `rule` is content with.
pub(super) fn spelled(errors: &mut FieldErrors, field: &Field<'_>, rule: fn(&str) -> Vec<String>) {
    errors.each(&field.at, field.text(), rule(field.text()));
}

/// A field that keeps the value it had.
pub(super) fn immutable(errors: &mut FieldErrors, new: &Value, old: &Value, path: &str) {
    unchanged(errors, new, old, path, IMMUTABLE);
}

pub(super) fn unchanged(errors: &mut FieldErrors, new: &Value, old: &Value, path: &str, why: &str) {
    let (now, before) = (doc::at(new, path), doc::at(old, path));
    if !doc::same(now, before) {
        errors.invalid(&Path::new(path), now.clone(), why);
    }
}

/// Labels, also of a selector or a template.
pub(super) fn labels(errors: &mut FieldErrors, field: &Field<'_>) {
    for (key, value) in field.entries() {
        errors.each(&field.at, key, names::qualified_name(key));
        errors.each(&field.at, value.text(), names::label_value(value.text()));
    }
}

pub(super) fn port_number(errors: &mut FieldErrors, field: &Field<'_>) {
    let number = field.int().unwrap_or_default();
    for message in names::port_number(number) {
        errors.invalid(&field.at, number, message);
    }
}

/// A port given by number or by name.
pub(super) fn port_or_name(errors: &mut FieldErrors, field: &Field<'_>) {
    match field.value {
        Value::String(name) => errors.each(&field.at, name, names::port_name(name)),
        _ => port_number(errors, field),
    }
}

/// A count or a share such as `25%`.
pub(super) fn count_or_percent(errors: &mut FieldErrors, field: &Field<'_>) {
    match field.value {
        Value::String(text) => {
            if percent(text).is_none() {
                let message = "a valid percent string must be a numeric string followed by an ending '%' (e.g. \
                               '1%',  or '93%', regex used for validation is '[0-9]+%')";
                errors.invalid(&field.at, text.as_str(), message);
            }
        }
        _ => non_negative(errors, field),
    }
}

/// A share of more than the whole.
pub(super) fn at_most_whole(errors: &mut FieldErrors, field: &Field<'_>) {
    if let Some(text) = field.value.as_str()
        && percent(text).is_some_and(|p| p > 100)
    {
        errors.invalid(&field.at, text, "must not be greater than 100%");
    }
}

pub(super) fn percent(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// No count and no share at all.
pub(super) fn is_zero(field: &Field<'_>) -> bool {
    match field.value {
        Value::String(text) => percent(text).unwrap_or_default() == 0,
        other => other.as_i64().unwrap_or_default() == 0,
    }
}

/// One of a few words; an empty one is none of them.
pub(super) fn one_of_or_empty(errors: &mut FieldErrors, field: &Field<'_>, supported: &[&str]) {
    if !supported.contains(&field.text()) {
        errors.unsupported(&field.at, field.text(), supported);
    }
}

/// A path after a domain, such as `acme.io/foo`.
pub(super) fn domain_path(errors: &mut FieldErrors, field: &Field<'_>) {
    let text = field.text();
    match text.split_once('/') {
        _ if text.is_empty() => errors.required(&field.at, ""),
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            errors.each(&field.at, host, names::dns_subdomain(host));
            let is_good = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
            if !path.bytes().all(is_good) {
                let message =
                    "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
                errors.invalid(&field.at, path, message);
            }
        }
        _ => errors.invalid(&field.at, text, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}
