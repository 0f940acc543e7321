//! The table of numbers, and what a release makes of it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use fixture::{Failure, Result};

use super::upstream::{Field, Package};

/// Messages with a form of their own, which `schema::protobuf` knows.
const SPECIAL: &[&str] = &[
    "meta.v1.Duration",
    "meta.v1.FieldsV1",
    "meta.v1.MicroTime",
    "meta.v1.Time",
    "apiextensions.v1.JSON",
    "apiextensions.v1.JSONSchemaPropsOrArray",
    "apiextensions.v1.JSONSchemaPropsOrBool",
    "apiextensions.v1.JSONSchemaPropsOrStringArray",
];

/// `numbers.txt`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    head: String,
    /// What stands behind each type.
    rows: BTreeMap<String, String>,
}

/// What a release has that the table had not, and the other way round.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub(super) fields: Vec<String>,
    pub(super) gone: Vec<String>,
    pub(super) types: Vec<String>,
    pub(super) gone_types: Vec<String>,
    pub(super) left_out: Vec<String>,
}

// === impl Table ===

impl Table {
    pub(super) fn parse(text: &str) -> Table {
        let (head, rows): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        let head = head.iter().map(|line| format!("{line}\n")).collect();
        let row = |line: &&str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.to_owned()));
        Table { head, rows: rows.iter().filter_map(row).collect() }
    }

    pub(super) fn render(&self) -> String {
        let rows = self.rows.iter().map(|(name, row)| format!("{name} {row}\n"));
        self.head.clone() + &rows.collect::<String>()
    }

    /// Every package of which there is a type, once.
    pub(super) fn packages(&self) -> impl Iterator<Item = &str> {
        let names = self.rows.keys().filter_map(|name| Some(name.rsplit_once('.')?.0));
        names.collect::<BTreeSet<&str>>().into_iter()
    }

    /// The rows of the same types, and of those they use, as a release has them.
    pub(super) fn renewed(&self, packages: &BTreeMap<String, Package>) -> Result<(Table, News)> {
        let (mut rows, mut news) = (BTreeMap::new(), News::default());
        let mut todo: Vec<String> = self.rows.keys().cloned().collect();
        while let Some(name) = todo.pop() {
            let Some((package, fields)) = find(packages, &name) else {
                news.gone_types.push(name);
                continue;
            };
            let used = fields.values().filter_map(|f| used_type(packages, package, f));
            todo.extend(used.filter(|t| !rows.contains_key(t) && !self.rows.contains_key(t)));
            // A type that two others use comes twice.
            if let Entry::Vacant(place) = rows.entry(name.clone()) {
                let row = place.insert(row(packages, package, &name, fields)?);
                news.compare(&name, self.rows.get(&name).map(String::as_str), row);
            }
        }
        for (package, types) in packages {
            let all = types.messages.keys().map(|m| format!("{package}.{m}"));
            let is_known = |name: &String| rows.contains_key(name) || has_own_form(packages, name);
            news.left_out.extend(all.filter(|name| !is_known(name)));
        }
        for list in [&mut news.fields, &mut news.gone, &mut news.types, &mut news.gone_types] {
            list.sort();
        }
        Ok((Table { head: self.head.clone(), rows }, news))
    }
}

// === impl News ===

impl News {
    fn compare(&mut self, name: &str, before: Option<&str>, after: &str) {
        let Some(before) = before else { return self.types.push(format!("{name} {after}")) };
        let fields = |row: &str| -> BTreeSet<String> {
            row.split(' ').filter(|word| !word.starts_with('=')).map(str::to_owned).collect()
        };
        let (old, new) = (fields(before), fields(after));
        self.fields.extend(new.difference(&old).map(|field| format!("{name} {field}")));
        self.gone.extend(old.difference(&new).map(|field| format!("{name} {field}")));
    }
}

type Fields = BTreeMap<u32, Field>;

fn find<'a>(packages: &'a BTreeMap<String, Package>, name: &'a str) -> Option<(&'a str, &'a Fields)> {
    let (package, message) = name.rsplit_once('.')?;
    Some((package, packages.get(package)?.messages.get(message)?))
}

/// Whether no row can tell of this message.
fn has_own_form(packages: &BTreeMap<String, Package>, name: &str) -> bool {
    let is_list = name
        .rsplit_once('.')
        .is_some_and(|(package, message)| packages.get(package).is_some_and(|p| p.is_list(message)));
    is_list || SPECIAL.contains(&name)
}

/// The type of a field, as the table calls it, if it is a message of a known package.
fn message_of(packages: &BTreeMap<String, Package>, package: &str, field: &Field) -> Option<String> {
    let name = match field.kind.rsplit_once('.') {
        None => format!("{package}.{}", field.kind),
        // .k8s.io.api.core.v1.Pod: the group is the last word but two.
        Some((path, message)) => {
            let (path, version) = path.rsplit_once('.')?;
            format!("{}.{version}.{message}", path.rsplit('.').next()?)
        }
    };
    find(packages, &name).is_some().then_some(name)
}

fn used_type(packages: &BTreeMap<String, Package>, package: &str, field: &Field) -> Option<String> {
    message_of(packages, package, field).filter(|name| !has_own_form(packages, name))
}

fn row(packages: &BTreeMap<String, Package>, package: &str, name: &str, fields: &Fields) -> Result<String> {
    let (mut words, mut next) = (Vec::new(), 1);
    let message = name.rsplit('.').next().unwrap_or(name);
    for (number, field) in fields {
        if *number != next {
            words.push(format!("={number}"));
        }
        next = number + 1;
        let json = packages.get(package).map_or("", |p| p.json_name(message, *number, field));
        let kind = message_of(packages, package, field);
        let is_list = !field.is_map && packages.get(package).is_some_and(|p| p.is_list(&field.kind));
        words.push(match (json, kind) {
            ("", Some(kind)) => format!("+{kind}"),
            ("", None) => return Err(Failure::new(format!("{name}: field {number} has no name in JSON"))),
            (json, _) if is_list => format!("~{json}"),
            (json, _) => json.to_owned(),
        });
    }
    if words.is_empty() {
        words.push("=1".to_owned());
    }
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# head\ncore.v1.Pod metadata spec\ncore.v1.Old a\nmeta.v1.ObjectMeta name =4 uid\n";

    fn packages() -> BTreeMap<String, Package> {
        let core = Package::parse(
            "message Pod {\n optional k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1;\n optional Spec spec = 2;\n \
             optional Verbs verbs = 3;\n optional Empty empty = 5;\n}\nmessage Spec {\n optional Handler handler = 1;\n}\n\
             message Handler {\n optional string path = 1;\n}\nmessage Verbs {\n repeated string items = 1;\n}\n\
             message Empty {\n}\nmessage Review {\n}\n",
            "type Spec struct {\n Handler `json:\",inline\" protobuf:\"bytes,1,opt,name=handler\"`\n}\ntype Verbs []string\n",
        );
        let meta = Package::parse(
            "message ObjectMeta {\n optional string name = 1;\n optional Time when = 2;\n optional string uID = 4;\n}\n\
             message Time {\n optional int64 seconds = 1;\n}\n",
            "type ObjectMeta struct {\n UID types.UID `json:\"uid\" protobuf:\"bytes,4,opt,name=uID\"`\n}\n",
        );
        [("core.v1".to_owned(), core), ("meta.v1".to_owned(), meta)].into()
    }

    #[test]
    fn a_release_renews_the_rows_and_what_is_new_is_told() -> Result<()> {
        let (table, news) = Table::parse(OLD).renewed(&packages())?;
        assert_eq!(
            table.render(),
            "# head\ncore.v1.Empty =1\ncore.v1.Handler path\ncore.v1.Pod metadata spec ~verbs =5 empty\n\
             core.v1.Spec +core.v1.Handler\nmeta.v1.ObjectMeta name when =4 uid\n"
        );
        assert_eq!(news.fields, ["core.v1.Pod empty", "core.v1.Pod ~verbs", "meta.v1.ObjectMeta when"]);
        assert_eq!(news.types.len(), 3);
        assert_eq!(news.gone_types, ["core.v1.Old"]);
        assert_eq!(news.left_out, ["core.v1.Review"]);
        Ok(())
    }

    #[test]
    fn a_table_that_is_true_stays_as_it_is() -> Result<()> {
        let (once, _) = Table::parse(OLD).renewed(&packages())?;
        let (twice, news) = once.renewed(&packages())?;
        assert_eq!(twice, once);
        assert_eq!(news, News { left_out: vec!["core.v1.Review".into()], ..News::default() });
        Ok(())
    }
}
