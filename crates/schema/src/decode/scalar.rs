//! Scalars with a form of their own: quantities, times, bytes.

use base::quantity::{ParseQuantityError, Quantity};
use base::rfc3339::Moment;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Why a scalar was refused, in the words of upstream's decoders.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadScalar {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Quantity,
    #[error("unable to parse quantity's suffix")]
    Suffix,
    #[error("parsing time {0:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {0:?} as \"2006\"")]
    Time(String),
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
}

/// What a suffix is made of.
const SUFFIX: &str = "eEinumkKMGTP+-0123456789";
/// Text shown in messages is cut here.
const SHOWN: usize = 128;

/// A quantity in its canonical form. None where the value is neither text nor a number.
pub(super) fn quantity(value: &Value) -> Option<Result<Value, BadScalar>> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    // An empty text is upstream's zero.
    if text.is_empty() {
        return Some(Ok("0".into()));
    }
    Some(match text.parse::<Quantity>() {
        Ok(quantity) => Ok(quantity.to_string().into()),
        Err(ParseQuantityError::Suffix { suffix, .. }) if suffix.chars().all(|c| SUFFIX.contains(c)) => {
            Err(BadScalar::Suffix)
        }
        Err(_) => Err(BadScalar::Quantity),
    })
}

/// A time in UTC, cut to whole seconds or to microseconds. Of any year: upstream's calendar has no end.
pub(super) fn time(text: &str, micro: bool) -> Result<String, BadScalar> {
    let bad = || BadScalar::Time(text.chars().take(SHOWN).collect());
    let time = Moment::parse(text).ok_or_else(bad)?;
    Ok(if micro { time.to_micros() } else { time.to_seconds() })
}

/// Base64 without the line ends that the decoder tolerates.
pub(super) fn bytes(text: &str) -> Result<String, BadScalar> {
    let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match STANDARD.decode(&plain) {
        Ok(_) => Ok(plain),
        Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => {
            Err(BadScalar::Base64(at))
        }
        Err(_) => Err(BadScalar::Base64(plain.len())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms() {
        for (given, want) in [
            (json!("1000m"), Ok("1")),
            (json!("0.5"), Ok("500m")),
            (json!(2), Ok("2")),
            (json!("1024Mi"), Ok("1Gi")),
            (json!("abc"), Err(BadScalar::Quantity)),
            (json!("1Zi"), Err(BadScalar::Quantity)),
            (json!("1KK"), Err(BadScalar::Suffix)),
        ] {
            assert_eq!(quantity(&given), Some(want.map(Value::from)), "{given}");
        }
        assert_eq!(quantity(&json!(true)), None);
        for (given, seconds, micro) in [
            ("2024-02-03T04:05:06Z", "2024-02-03T04:05:06Z", "2024-02-03T04:05:06.000000Z"),
            ("2024-02-03T04:05:06.123456789+02:00", "2024-02-03T02:05:06Z", "2024-02-03T02:05:06.123456Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(time(given, false).as_deref(), Ok(seconds));
            assert_eq!(time(given, true).as_deref(), Ok(micro));
        }
        for bad in
            ["", "now", "2024-02-03", "2024-02-03 04:05:06Z", "2024-13-03T04:05:06Z", "é024-02-03T04:05:06Z"]
        {
            assert!(time(bad, false).is_err(), "{bad}");
        }
        assert_eq!(bytes("aGk=\n").as_deref(), Ok("aGk="));
        assert_eq!(bytes("a*k="), Err(BadScalar::Base64(1)));
        assert_eq!(bytes("aGk"), Err(BadScalar::Base64(3)));
    }
}
