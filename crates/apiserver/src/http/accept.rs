//! What form of an answer the client can read.

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
    /// Of built-in kinds only.
    Protobuf,
}

/// What is told of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Whole,
    Table,
    Metadata,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) format: Format,
    pub(crate) shape: Shape,
}

/// One alternative of an Accept header.
#[derive(Debug)]
struct Range<'h> {
    kind: &'h str,
    parameters: Vec<(&'h str, &'h str)>,
    quality: f32,
}

/// The forms offered, for the error status; the last one not of custom kinds.
pub(crate) const OFFERED: &[&str] = &["application/json", "application/yaml", PROTOBUF];
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The best form both sides know; None when there is none. Nothing accepted is everything accepted.
pub(crate) fn negotiate(header: &str, offered: &[&str]) -> Option<Accepted> {
    alternatives(header, offered).into_iter().next()
}

/// The same for what cannot be shown as a Table.
pub(crate) fn negotiate_whole(header: &str, offered: &[&str]) -> Option<Format> {
    let mut forms = alternatives(header, offered).into_iter();
    forms.find(|accepted| accepted.shape != Shape::Table).map(|accepted| accepted.format)
}

/// What both sides know, best first.
fn alternatives(header: &str, offered: &[&str]) -> Vec<Accepted> {
    let plain = Accepted { format: Format::Json, shape: Shape::Whole };
    if header.trim().is_empty() {
        return vec![plain];
    }
    let known = |range: &Range<'_>| {
        let format = format_of(range.kind)?;
        let asked = |name: &str| range.parameters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let shape = match asked("as") {
            None => Shape::Whole,
            Some(what) => {
                let known = asked("g") == Some("meta.k8s.io") && matches!(asked("v"), Some("v1" | "v1beta1"));
                match what {
                    "Table" if known && format != Format::Protobuf => Shape::Table,
                    "PartialObjectMetadata" | "PartialObjectMetadataList" if known => Shape::Metadata,
                    // A shape nobody knows: the next alternative may be better.
                    _ => return None,
                }
            }
        };
        // Metadata has a protobuf form, whatever it is of.
        let is_offered = offered.contains(&format.content_type())
            || (format == Format::Protobuf && shape == Shape::Metadata);
        is_offered.then_some(Accepted { format, shape })
    };
    ranges(header).iter().filter_map(known).collect()
}

/// The version of aggregated discovery the client prefers over the plain lists.
pub(crate) fn aggregated_discovery(header: &str) -> Option<&'static str> {
    for range in ranges(header) {
        let asked = |name: &str| range.parameters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let known = range.kind == "application/json" && asked("g") == Some("apidiscovery.k8s.io");
        match (known && asked("as") == Some("APIGroupDiscoveryList"), asked("v")) {
            (true, Some("v2")) => return Some("v2"),
            (true, Some("v2beta1")) => return Some("v2beta1"),
            (false, _) if asked("as").is_none() && format_of(range.kind).is_some() => return None,
            _ => {}
        }
    }
    None
}

/// Whether the client takes gzip.
pub(crate) fn takes_gzip(header: &str) -> bool {
    header.split(',').any(|part| {
        let mut words = part.split(';').map(str::trim);
        matches!(words.next(), Some("gzip")) && !words.any(|w| w == "q=0")
    })
}

/// The alternatives, best first; equals stay in the order of the header.
fn ranges(header: &str) -> Vec<Range<'_>> {
    let mut out: Vec<Range<'_>> = header.split(',').take(64).filter_map(read).collect();
    out.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    out
}

fn read(part: &str) -> Option<Range<'_>> {
    let mut words = part.split(';').map(str::trim);
    let kind = words.next().filter(|kind| !kind.is_empty())?;
    let parameters: Vec<_> = words.filter_map(|w| w.split_once('=')).collect();
    let quality = parameters.iter().find(|(n, _)| *n == "q").and_then(|(_, v)| v.parse().ok()).unwrap_or(1.0);
    (quality > 0.0).then_some(Range { kind, parameters, quality })
}

fn format_of(kind: &str) -> Option<Format> {
    match kind {
        "application/json" | "*/*" | "application/*" => Some(Format::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Some(Format::Yaml),
        PROTOBUF => Some(Format::Protobuf),
        _ => None,
    }
}

// === impl Format ===

impl Format {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Protobuf => PROTOBUF,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_both_know_wins() {
        let json = |shape| Some(Accepted { format: Format::Json, shape });
        let protobuf = |shape| Some(Accepted { format: Format::Protobuf, shape });
        let kubectl_get = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let rows = [
            ("", json(Shape::Whole)),
            ("*/*", json(Shape::Whole)),
            (kubectl_get, json(Shape::Table)),
            ("application/vnd.kubernetes.protobuf,application/json", protobuf(Shape::Whole)),
            ("application/json,application/vnd.kubernetes.protobuf", json(Shape::Whole)),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                protobuf(Shape::Metadata),
            ),
            ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", None),
            ("text/html", None),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", json(Shape::Metadata)),
            ("application/json;as=Other;g=meta.k8s.io;v=v1, application/json", json(Shape::Whole)),
            (
                "application/json;q=0.5,application/yaml",
                Some(Accepted { format: Format::Yaml, shape: Shape::Whole }),
            ),
        ];
        for (header, form) in rows {
            assert_eq!(negotiate(header, OFFERED), form, "{header}");
        }
        let custom = &OFFERED[..2];
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf", custom), None);
        let either = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(negotiate(either, custom), json(Shape::Whole));
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(negotiate(metadata, custom), protobuf(Shape::Metadata));
    }

    #[test]
    fn what_has_no_columns_is_no_table() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(negotiate_whole(table, OFFERED), None);
        assert_eq!(negotiate_whole(&format!("{table},application/yaml"), OFFERED), Some(Format::Yaml));
        assert_eq!(negotiate_whole("", OFFERED), Some(Format::Json));
        assert_eq!(negotiate_whole("text/html", OFFERED), None);
    }

    #[test]
    fn discovery_is_aggregated_for_those_who_ask() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(aggregated_discovery(kubectl), Some("v2"));
        assert_eq!(aggregated_discovery("application/json"), None);
        assert_eq!(aggregated_discovery(""), None);
    }

    #[test]
    fn gzip() {
        assert!(takes_gzip("gzip") && takes_gzip("deflate, gzip;q=1.0"));
        assert!(!takes_gzip("gzip;q=0") && !takes_gzip("br"));
    }
}
