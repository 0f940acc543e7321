//! Amounts inside objects.

use api::field::FieldErrors;
use api::pod::{Amount, NotAQuantity};
use serde_json::Value;

use super::check;
use crate::doc::Field;

/// An amount, given as text or as a bare number.
pub(super) fn parse(value: &Value) -> Option<Amount> {
    match value {
        Value::String(text) => Amount::parse(text).ok(),
        Value::Number(number) => Amount::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// An amount that is no debt.
pub(super) fn non_negative(errors: &mut FieldErrors, field: &Field<'_>) -> Option<Amount> {
    let Some(amount) = parse(field.value) else {
        errors.invalid(&field.at, field.value.clone(), NotAQuantity.to_string());
        return None;
    };
    if amount.is_negative() {
        errors.invalid(&field.at, field.value.clone(), check::NEGATIVE);
    }
    Some(amount)
}

pub(super) fn positive(errors: &mut FieldErrors, field: &Field<'_>) -> Option<Amount> {
    let Some(amount) = parse(field.value) else {
        errors.invalid(&field.at, field.value.clone(), NotAQuantity.to_string());
        return None;
    };
    if amount.is_negative() || amount.is_zero() {
        errors.invalid(&field.at, field.value.clone(), "must be greater than zero");
    }
    Some(amount)
}

/// The amount as upstream writes it: `0` where there is none.
pub(super) fn cell(value: &Value) -> String {
    parse(value).unwrap_or(Amount::ZERO).to_string()
}
