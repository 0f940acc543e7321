//! Custom kinds: what a CustomResourceDefinition says, as the machinery asks for it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use api::field::FieldErrors;
use base::time::Wall;
use schema::custom::CustomType;
use schema::jsonpath::JsonPath;
use schema::types::At;
use serde_json::{Value, json};

use crate::doc;
use crate::kind::{Column, Kind, ScalePaths, Scope, Strategy, Verb};
use crate::meta;
use crate::table;

/// The kinds an established definition brings along: one for each version it serves.
#[must_use]
pub fn kinds(definition: &Value) -> Vec<Kind> {
    let served = doc::list(definition, "spec.versions").iter().filter(|v| v["served"] == true);
    served.map(|version| kind(definition, version)).collect()
}

/// The kind of a definition's objects as they are stored, served or not: what to walk when they all go.
#[must_use]
pub fn stored_kind(definition: &Value) -> Option<Kind> {
    storage_version(definition).map(|version| kind(definition, version))
}

fn storage_version(definition: &Value) -> Option<&Value> {
    doc::list(definition, "spec.versions").iter().find(|v| v["storage"] == true)
}

fn kind(definition: &Value, version: &Value) -> Kind {
    // What it was given, not what it wants: some of that may be another's.
    let accepted = doc::at(definition, "status.acceptedNames");
    let name = |field: &str| doc::text(accepted, field).to_owned();
    let list = |field: &str| -> Vec<Cow<'static, str>> {
        let names = doc::list(accepted, field).iter();
        names.filter_map(|v| v.as_str().map(|s| Cow::Owned(s.to_owned()))).collect()
    };
    let group = doc::text(definition, "spec.group").to_owned();
    // The definition is named after it, and neither changes: no status can make it another.
    let plural = doc::text(definition, "spec.names.plural").to_owned();
    let stored = storage_version(definition).map(|v| doc::text(v, "name")).unwrap_or_default();
    let schema = CustomType::new(doc::at(version, "schema.openAPIV3Schema"));
    let strategy = Custom {
        converts: reshapes(definition, &schema),
        schema,
        openapi: doc::at(version, "schema.openAPIV3Schema").clone(),
        columns: columns(version),
        selectable: doc::list(version, "selectableFields").iter().filter_map(selectable).collect(),
        scale: scale(version),
        has_status: version["subresources"]["status"].is_object(),
        api_version: format!("{group}/{}", doc::text(version, "name")),
        stored_version: format!("{group}/{stored}"),
        is_storage_served: storage_version(definition).is_some_and(|v| v["served"] == true),
    };
    let (has_status, has_scale) = (strategy.has_status, strategy.scale.is_some());
    let mut kind = Kind {
        version: doc::text(version, "name").to_owned().into(),
        kind: name("kind").into(),
        list_kind: match name("listKind") {
            said if said.is_empty() => format!("{}List", name("kind")).into(),
            said => said.into(),
        },
        singular: name("singular").into(),
        short_names: list("shortNames"),
        categories: list("categories"),
        scope: if doc::text(definition, "spec.scope") == "Namespaced" {
            Scope::Namespaced
        } else {
            Scope::Cluster
        },
        // What is made while all goes would be left behind.
        verbs: if meta::is_deleting(definition) { Verb::ALL_BUT_CREATE } else { Verb::ALL },
        subresources: Vec::new(),
        storage: format!("{plural}.{group}").into(),
        type_name: None,
        strategy: Arc::new(strategy),
        group: group.into(),
        plural: plural.into(),
    };
    if has_status {
        kind = kind.with_status();
    }
    if has_scale {
        kind = kind.with_scale();
    }
    kind
}

/// Whether objects may be read in another form than they were stored in: as another version, or by a schema that has
/// defaults now or is not the first. Everything else is passed on as it lies there.
fn reshapes(definition: &Value, schema: &CustomType) -> bool {
    doc::list(definition, "spec.versions").len() > 1
        || schema.has_defaults()
        || doc::int(definition, "metadata.generation") > 1
}

/// The behaviour of a custom kind.
struct Custom {
    schema: CustomType,
    openapi: Value,
    /// What is shown, and where it is found; None is the name.
    columns: (Vec<Column>, Vec<Option<JsonPath>>),
    selectable: Vec<(String, JsonPath)>,
    scale: Option<ScalePaths>,
    has_status: bool,
    api_version: String,
    stored_version: String,
    /// Whether clients can ask for the version that is stored.
    is_storage_served: bool,
    converts: bool,
}

fn columns(version: &Value) -> (Vec<Column>, Vec<Option<JsonPath>>) {
    let (mut columns, mut paths) = (vec![Column::NAME], vec![None]);
    for said in doc::list(version, "additionalPrinterColumns") {
        let Ok(path) = JsonPath::parse(doc::text(said, "jsonPath")) else { continue };
        let text = |field: &str| Cow::Owned(doc::text(said, field).to_owned());
        columns.push(Column {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            priority: i32::try_from(doc::int(said, "priority")).unwrap_or_default(),
            description: text("description"),
        });
        paths.push(Some(path));
    }
    if columns.len() == 1 {
        columns.push(Column::AGE);
        paths.extend(JsonPath::parse(".metadata.creationTimestamp").ok().map(Some));
    }
    (columns, paths)
}

fn selectable(field: &Value) -> Option<(String, JsonPath)> {
    let text = doc::text(field, "jsonPath");
    Some((text.trim_start_matches('.').to_owned(), JsonPath::parse(text).ok()?))
}

fn scale(version: &Value) -> Option<ScalePaths> {
    let scale = version["subresources"]["scale"].as_object()?;
    let path = |field: &str| {
        let text = scale.get(field)?.as_str()?.trim_start_matches('.');
        (!text.is_empty()).then(|| Cow::Owned(text.to_owned()))
    };
    Some(ScalePaths {
        replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        selector: path("labelSelectorPath"),
    })
}

// === impl Custom ===

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("api_version", &self.api_version).finish_non_exhaustive()
    }
}

impl Strategy for Custom {
    fn at(&self) -> At<'_> {
        self.schema.at()
    }

    fn openapi(&self) -> &Value {
        &self.openapi
    }

    fn conform(&self, object: &mut Value) -> Result<Vec<String>, String> {
        self.schema.conform(object).map_err(|misfit| misfit.to_string())
    }

    fn set_defaults(&self, object: &mut Value) {
        self.schema.set_defaults(object);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value) {
        // Upstream: through /status a custom object changes its status and nothing else.
        let mut metadata = old["metadata"].clone();
        let managed = new["metadata"]["managedFields"].take();
        if let Some(map) = metadata.as_object_mut() {
            meta::set_or_remove(map, "managedFields", (!managed.is_null()).then_some(managed));
        }
        new["metadata"] = metadata;
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        self.schema.validate(object, None, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.schema.validate(new, Some(old), errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.schema.validate(new, Some(old), errors);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    /// Without a status subresource, status is a field like any other.
    fn is_new_generation(&self, new: &Value, old: &Value) -> bool {
        let substance = |object: &Value| {
            let mut object = object.clone();
            if let Some(map) = object.as_object_mut() {
                map.remove("metadata");
                if self.has_status {
                    map.remove("status");
                }
            }
            object
        };
        substance(new) != substance(old)
    }

    fn converts(&self) -> bool {
        self.converts
    }

    fn write_as_stored(&self, object: &mut Value) {
        object["apiVersion"] = self.stored_version.as_str().into();
    }

    fn show_as_here(&self, object: &mut Value) {
        object["apiVersion"] = self.api_version.as_str().into();
        self.schema.refresh(object);
    }

    fn storage_version(&self) -> Option<&str> {
        self.is_storage_served.then(|| self.stored_version.rsplit('/').next().unwrap_or_default())
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        let (_, path) = self.selectable.iter().find(|(known, _)| known == name)?;
        Some(match path.first(object) {
            None | Some(Value::Null) => "".into(),
            Some(Value::String(text)) => text.as_str().into(),
            Some(other) => other.to_string().into(),
        })
    }

    fn scale(&self) -> Option<ScalePaths> {
        self.scale.clone()
    }

    fn columns(&self) -> &[Column] {
        &self.columns.0
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let (columns, paths) = &self.columns;
        columns.iter().zip(paths).map(|(column, path)| cell(column, path.as_ref(), object, now)).collect()
    }
}

fn cell(column: &Column, path: Option<&JsonPath>, object: &Value, now: Wall) -> Value {
    let Some(path) = path else { return table::name(object) };
    let found = path.find(object);
    let Some(first) = found.first() else {
        return if column.kind == "date" { "<unknown>".into() } else { Value::Null };
    };
    match &*column.kind {
        "integer" => first.as_i64().map_or(Value::Null, Value::from),
        "number" => first.as_f64().map_or(Value::Null, Value::from),
        "boolean" => first.as_bool().map_or(Value::Null, Value::from),
        "date" => table::since(first, now).into(),
        "string" if column.name == "Age" && first.is_null() => json!("<unknown>"),
        _ => {
            let texts: Vec<String> =
                found.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
            texts.join(",").into()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({"spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "crons", "singular": "cron", "kind": "Cron", "shortNames": ["cr"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}},
                    "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}}},
                 "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                 "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}]},
                {"name": "v2", "served": false, "storage": false},
            ],
        }, "status": {"acceptedNames": {"plural": "crons", "singular": "cron", "kind": "Cron"}}})
    }

    #[test]
    fn a_definition_makes_kinds() {
        let kinds = kinds(&definition());
        assert_eq!(kinds.len(), 1);
        let kind = &kinds[0];
        assert_eq!(
            (&*kind.plural, &*kind.place(), &*kind.api_version()),
            ("crons", "/custom/crons.example.com/", "example.com/v1")
        );
        assert!(kind.short_names.is_empty(), "it wants one, but was not given any");
        assert!(kind.has_status() && kind.strategy.scale().is_some());
        let mut object = json!({"apiVersion": "example.com/v1", "kind": "Cron", "metadata": {"name": "a"}, "spec": {"x": 1}});
        assert_eq!(kind.strategy.conform(&mut object).unwrap(), ["unknown field \"spec.x\""]);
        kind.strategy.set_defaults(&mut object);
        assert_eq!(object["spec"]["n"], 3);
        assert_eq!(kind.strategy.cells(&object, Wall::from_secs(0)), [json!("a"), json!(3)]);
    }
}
