//! What a package of a release says of its types: messages from generated.proto, names from the tags of the Go types.

use std::collections::{BTreeMap, BTreeSet};

/// The types of one package.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// Fields by number, of each message.
    pub(super) messages: BTreeMap<String, BTreeMap<u32, Field>>,
    /// Names of types that are lists.
    lists: BTreeSet<String>,
    /// How a field of a type is called in JSON; nothing where it is spread among the fields of its owner.
    names: BTreeMap<(String, u32), String>,
}

/// A field of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    /// As generated.proto has it; of a map the type of its values.
    pub(super) kind: String,
    pub(super) is_map: bool,
}

// === impl Package ===

impl Package {
    pub(super) fn parse(proto: &str, go: &str) -> Package {
        let mut package = Package::default();
        package.read_proto(proto);
        package.read_go(go);
        package
    }

    fn read_proto(&mut self, text: &str) {
        let mut message: Option<String> = None;
        for line in text.lines().map(|l| l.split("//").next().unwrap_or_default().trim()) {
            if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix('{')) {
                let name = name.trim().to_owned();
                self.messages.insert(name.clone(), BTreeMap::new());
                message = Some(name);
            } else if line == "}" {
                message = None;
            } else if let Some((name, (number, field))) = message.as_ref().zip(field(line)) {
                self.messages.entry(name.clone()).or_default().insert(number, field);
            }
        }
    }

    fn read_go(&mut self, text: &str) {
        let mut owner = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("type ") {
                let mut words = rest.split_whitespace();
                owner = words.next().unwrap_or_default();
                if words.next().is_some_and(|word| word.starts_with("[]")) {
                    self.lists.insert(owner.to_owned());
                }
            } else if let Some(number) = tag(line, "protobuf").and_then(|t| t.split(',').nth(1)?.parse().ok())
            {
                let name = tag(line, "json").and_then(|t| t.split(',').next()).unwrap_or_default();
                self.names.insert((owner.to_owned(), number), name.to_owned());
            }
        }
    }

    /// What JSON calls a field; nothing for one whose own fields stand among those of its owner.
    pub(super) fn json_name<'a>(&'a self, message: &str, number: u32, field: &'a Field) -> &'a str {
        self.names.get(&(message.to_owned(), number)).map_or(&field.name, String::as_str)
    }

    /// Whether this type is a list, whose message has it as its first field.
    pub(super) fn is_list(&self, kind: &str) -> bool {
        self.lists.contains(kind)
    }
}

/// `optional string name = 1;`
fn field(line: &str) -> Option<(u32, Field)> {
    let (left, number) = line.strip_suffix(';')?.rsplit_once('=')?;
    let (kind, name) = left.trim().rsplit_once(' ')?;
    let kind =
        ["optional ", "repeated ", "required "].iter().fold(kind, |k, word| k.trim_start_matches(word));
    let values = kind.strip_prefix("map<").and_then(|rest| rest.strip_suffix('>')?.split_once(','));
    let field = Field {
        name: name.to_owned(),
        kind: values.map_or(kind, |(_, value)| value).trim().to_owned(),
        is_map: values.is_some(),
    };
    Some((number.trim().parse().ok()?, field))
}

/// The value of a tag of a Go field.
fn tag<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, tags) = line.split("//").next()?.split_once('`')?;
    let (_, rest) = tags.split_once(&format!("{name}:\""))?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_numbers_from_one_file_and_names_from_the_other() {
        let proto = "message Probe {\n  // optional string comment = 9;\n  optional ProbeHandler handler = 1;\n\n  \
                     map<string, .k8s.io.x.Quantity> uID = 7;\n}\nmessage Empty {\n}\n";
        let go = "type Probe struct {\n\tProbeHandler `json:\",inline\" protobuf:\"bytes,1,opt,name=handler\"`\n\
                  \tUID map[string]x `json:\"uid,omitempty\" protobuf:\"bytes,7,rep,name=uID\"`\n}\n\ntype Verbs []string\n";
        let package = Package::parse(proto, go);
        let probe = &package.messages["Probe"];
        assert_eq!(probe.keys().copied().collect::<Vec<_>>(), [1, 7]);
        assert_eq!(
            (probe[&1].kind.as_str(), probe[&7].kind.as_str()),
            ("ProbeHandler", ".k8s.io.x.Quantity")
        );
        assert_eq!((probe[&1].is_map, probe[&7].is_map), (false, true));
        assert_eq!(package.json_name("Probe", 1, &probe[&1]), "");
        assert_eq!(package.json_name("Probe", 7, &probe[&7]), "uid");
        assert!(package.messages["Empty"].is_empty());
        assert!(package.is_list("Verbs") && !package.is_list("Probe"));
    }
}
