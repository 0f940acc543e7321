//! Tables: what `kubectl get` prints.

use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::Value;

use crate::{doc, label_selector};

/// The cell of the name column.
#[must_use]
pub fn name(object: &Value) -> Value {
    object["metadata"]["name"].as_str().unwrap_or_default().into()
}

/// The name, with a word added if an annotation makes the object the default of its kind.
#[must_use]
pub fn name_and_default(object: &Value, annotations: &[&str]) -> Value {
    let given = &object["metadata"]["annotations"];
    let is_default = annotations.iter().any(|a| given.get(a).and_then(Value::as_str) == Some("true"));
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if is_default { format!("{name} (default)").into() } else { name.into() }
}

/// When the object was created, as it is written.
#[must_use]
pub fn created_at(object: &Value) -> Value {
    object["metadata"]["creationTimestamp"].as_str().unwrap_or_default().into()
}

/// How long ago the object was created, in kubectl's short form.
#[must_use]
pub fn age(object: &Value, now: Wall) -> String {
    since(&object["metadata"]["creationTimestamp"], now)
}

/// How long ago an RFC 3339 time was; `<unknown>` where there is none.
#[must_use]
pub fn since(time: &Value, now: Wall) -> String {
    match time.as_str().and_then(Moment::parse_lenient) {
        Some(then) => short_duration(now.secs().saturating_sub(then.secs)),
        None => "<unknown>".to_owned(),
    }
}

/// `a=1,b=2`, or `<none>`.
#[must_use]
pub fn labels(map: &Value) -> String {
    let labels: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    or_none(labels.join(","))
}

/// The text of a label selector, or `<none>`.
#[must_use]
pub fn selector(selector: &Value) -> String {
    or_none(label_selector::to_text(selector))
}

/// Names and images of the containers of a template.
#[must_use]
pub fn containers(template: &Value) -> [Value; 2] {
    let containers = doc::list(template, "spec.containers");
    let joined = |field: &str| containers.iter().map(|c| doc::text(c, field)).collect::<Vec<_>>().join(",");
    [joined("name").into(), joined("image").into()]
}

/// The text, or `<none>` where it is empty.
#[must_use]
pub fn or_none(text: impl Into<String>) -> String {
    let text = text.into();
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// The text at a path, or what stands for nothing.
#[must_use]
pub fn text_or(object: &Value, path: &str, nothing: &str) -> String {
    match doc::text(object, path) {
        "" => nothing.to_owned(),
        text => text.to_owned(),
    }
}

/// The first `max` of a list, and how many more there are.
#[must_use]
pub fn first_few(list: &[String], max: usize) -> String {
    let shown = list[..list.len().min(max)].join(",");
    if list.len() > max { format!("{shown} + {} more...", list.len() - max) } else { shown }
}

/// `41s`, `3m20s`, `18m`, `5h10m`, `26h`, `3d4h`, `90d`, `2y40d`: the more there is, the coarser it is told.
#[must_use]
pub fn short_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |big: i64, b: &str, small: i64, s: &str| match seconds % big / small {
        0 => format!("{}{b}", seconds / big),
        rest => format!("{}{b}{rest}{s}", seconds / big),
    };
    match seconds {
        // A clock a little behind the server's is no reason for an odd cell.
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => pair(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => pair(YEAR, "y", DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_as_kubectl_tells_them() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (18_600, "5h10m"),
            (93_600, "26h"),
            (172_800, "2d"),
            (273_600, "3d4h"),
            (7_776_000, "90d"),
            (63_072_000, "2y"),
            (66_528_000, "2y40d"),
            (315_360_000, "10y"),
        ];
        for (seconds, told) in cases {
            assert_eq!(short_duration(seconds), told, "{seconds}");
        }
    }
}
