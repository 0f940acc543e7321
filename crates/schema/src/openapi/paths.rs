//! The paths of a resource, and what can be done on each.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Dialect, Resource, Source};
use crate::types::builtin;

const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

type Kind<'a> = (&'a str, &'a str, &'a str);

/// What one method on one path does.
struct Operation<'a> {
    method: &'static str,
    /// `x-kubernetes-action`
    action: &'static str,
    /// The first word of the operation's name, and the words.
    id: String,
    words: String,
    kind: Kind<'a>,
    /// Types of the body and of the answer.
    body: Option<String>,
    answer: String,
    parameters: &'static [(&'static str, &'static str, &'static str)],
}

const PRETTY: (&str, &str, &str) = ("pretty", "string", "If 'true', the output is indented.");
const DRY_RUN: (&str, &str, &str) = ("dryRun", "string", "`All`: do everything but keep the change.");
const FIELD_MANAGER: (&str, &str, &str) =
    ("fieldManager", "string", "Who makes the change: the owner of the fields it sets.");
const FIELD_VALIDATION: (&str, &str, &str) = (
    "fieldValidation",
    "string",
    "What to do about unknown and duplicate fields: `Ignore`, `Warn` (the default) or `Strict`.",
);
const FORCE: (&str, &str, &str) = ("force", "boolean", "Apply only: take fields that others own.");

const READ: &[(&str, &str, &str)] = &[];
const WRITE: &[(&str, &str, &str)] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
const PATCHED: &[(&str, &str, &str)] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
const DELETED: &[(&str, &str, &str)] = &[
    DRY_RUN,
    ("gracePeriodSeconds", "integer", "Seconds the object is given to end."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("propagationPolicy", "string", "What becomes of dependents: `Orphan`, `Background` or `Foreground`."),
];
const LISTED: &[(&str, &str, &str)] = &[
    ("allowWatchBookmarks", "boolean", "Watches may carry BOOKMARK events."),
    ("continue", "string", "Where the last page ended."),
    ("fieldSelector", "string", "Only objects with these field values."),
    ("labelSelector", "string", "Only objects with these labels."),
    ("limit", "integer", "The most objects in one page."),
    ("resourceVersion", "string", "How old the answer may be."),
    ("resourceVersionMatch", "string", "How resourceVersion is meant: `Exact` or `NotOlderThan`."),
    ("sendInitialEvents", "boolean", "Watches begin with what there is."),
    ("timeoutSeconds", "integer", "The longest this call may last."),
    ("watch", "boolean", "Follow changes instead of listing."),
];

/// The path items of a resource; the types they speak of are added to `wanted`.
pub(super) fn of(
    resource: &Resource<'_>,
    dialect: Dialect,
    wanted: &mut BTreeSet<String>,
) -> Vec<(String, Value)> {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let everywhere = format!("{root}/{}", resource.plural);
    let collection = if resource.is_namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        everywhere.clone()
    };
    let mut items = Vec::new();
    let mut add = |path: String, operations: Vec<Operation<'_>>| {
        if !operations.is_empty() {
            for operation in &operations {
                wanted.insert(operation.answer.clone());
                wanted.extend(operation.body.clone());
            }
            items.push((path.clone(), path_item(&path, resource, operations, dialect)));
        }
    };
    add(collection.clone(), on_collection(resource));
    add(format!("{collection}/{{name}}"), on_object(resource));
    if resource.is_namespaced && resource.verbs.contains(&"list") {
        add(everywhere, vec![list(resource, "ForAllNamespaces", false)]);
    }
    for sub in &resource.subresources {
        add(format!("{collection}/{{name}}/{}", sub.name), on_subresource(resource, sub));
    }
    items
}

impl Resource<'_> {
    fn gvk(&self) -> Kind<'_> {
        (self.group, self.version, self.kind)
    }

    fn list_type(&self) -> String {
        format!("{}List", self.type_name())
    }

    fn has(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// `NamespacedPod`, `Node`
    fn scoped_name(&self) -> String {
        format!("{}{}", if self.is_namespaced { "Namespaced" } else { "" }, self.kind)
    }

    /// `AppsV1`, `CoreV1`
    fn group_name(&self) -> String {
        let group = match self.group {
            "" => "core",
            group => group.strip_suffix(".k8s.io").unwrap_or(group),
        };
        group.split('.').chain([self.version]).map(capitalized).collect()
    }
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn list<'a>(resource: &'a Resource<'_>, suffix: &str, is_scoped: bool) -> Operation<'a> {
    let name = if is_scoped { resource.scoped_name() } else { resource.kind.to_owned() };
    Operation {
        method: "get",
        action: "list",
        id: format!("list{}{name}{suffix}", resource.group_name()),
        words: format!("list or watch objects of kind {}", resource.kind),
        kind: resource.gvk(),
        body: None,
        answer: resource.list_type(),
        parameters: LISTED,
    }
}

fn on_collection<'a>(resource: &'a Resource<'_>) -> Vec<Operation<'a>> {
    let mut operations = Vec::new();
    let (group, name) = (resource.group_name(), resource.scoped_name());
    if resource.has("list") {
        operations.push(list(resource, "", true));
    }
    if resource.has("create") {
        operations.push(Operation {
            method: "post",
            action: "post",
            id: format!("create{group}{name}"),
            words: format!("create a {}", resource.kind),
            kind: resource.gvk(),
            body: Some(resource.type_name()),
            answer: resource.type_name(),
            parameters: WRITE,
        });
    }
    if resource.has("deletecollection") {
        operations.push(Operation {
            method: "delete",
            action: "deletecollection",
            id: format!("delete{group}Collection{name}"),
            words: format!("delete collection of {}", resource.kind),
            kind: resource.gvk(),
            body: Some(DELETE_OPTIONS.into()),
            answer: STATUS.into(),
            parameters: DELETED,
        });
    }
    operations
}

fn on_object<'a>(resource: &'a Resource<'_>) -> Vec<Operation<'a>> {
    let id = |verb: &str| format!("{verb}{}{}", resource.group_name(), resource.scoped_name());
    let mut operations = single(&resource.verbs, resource.gvk(), &resource.type_name(), &id, resource.kind);
    if resource.has("delete") {
        operations.push(Operation {
            method: "delete",
            action: "delete",
            id: id("delete"),
            words: format!("delete a {}", resource.kind),
            kind: resource.gvk(),
            body: Some(DELETE_OPTIONS.into()),
            answer: STATUS.into(),
            parameters: DELETED,
        });
    }
    operations
}

fn on_subresource<'a>(resource: &'a Resource<'_>, sub: &'a super::Sub<'_>) -> Vec<Operation<'a>> {
    let suffix = capitalized(sub.name);
    let id = |verb: &str| format!("{verb}{}{}{suffix}", resource.group_name(), resource.scoped_name());
    let (group, version, kind) = sub.kind;
    let type_name = if sub.kind == resource.gvk() {
        resource.type_name()
    } else {
        // Streams (log, exec) have no type.
        let types = builtin();
        types.id_of_kind(group, version, kind).map(|id| types.get(id).name.to_string()).unwrap_or_default()
    };
    let words = format!("{} of the specified {}", sub.name, resource.kind);
    let mut operations = single(&sub.verbs, sub.kind, &type_name, &id, &words);
    if sub.verbs.contains(&"create") {
        operations.push(Operation {
            method: "post",
            action: "post",
            id: id("create"),
            words: format!("create {words}"),
            kind: sub.kind,
            body: Some(type_name.clone()).filter(|name| !name.is_empty()),
            answer: type_name,
            parameters: WRITE,
        });
    }
    operations
}

/// Reading, replacing and patching one object.
fn single<'a>(
    verbs: &[&str],
    kind: Kind<'a>,
    type_name: &str,
    id: &dyn Fn(&str) -> String,
    words: &str,
) -> Vec<Operation<'a>> {
    let all = [
        ("get", "get", "get", "read", READ, None),
        ("update", "put", "put", "replace", WRITE, Some(type_name)),
        ("patch", "patch", "patch", "patch", PATCHED, Some(PATCH)),
    ];
    let offered = all.into_iter().filter(|(verb, ..)| verbs.contains(verb));
    let operations = offered.map(|(_, method, action, verb, parameters, body)| Operation {
        method,
        action,
        id: id(verb),
        words: format!("{} the specified {words}", if verb == "patch" { "partially update" } else { verb }),
        kind,
        body: body.filter(|name| !name.is_empty()).map(ToOwned::to_owned),
        answer: type_name.to_owned(),
        parameters,
    });
    operations.collect()
}

fn path_item(path: &str, resource: &Resource<'_>, operations: Vec<Operation<'_>>, dialect: Dialect) -> Value {
    let mut item = Map::new();
    for operation in operations {
        item.insert(operation.method.into(), told(&operation, resource, dialect));
    }
    let mut parameters = Vec::new();
    for name in ["name", "namespace"].into_iter().filter(|name| path.contains(&format!("{{{name}}}"))) {
        let mut told = parameter(name, "string", &format!("{name} of the {}", resource.kind), dialect);
        told["in"] = "path".into();
        told["required"] = true.into();
        parameters.push(told);
    }
    parameters.push(parameter(PRETTY.0, PRETTY.1, PRETTY.2, dialect));
    item.insert("parameters".into(), parameters.into());
    Value::Object(item)
}

fn parameter(name: &str, kind: &str, words: &str, dialect: Dialect) -> Value {
    let mut told = json!({"name": name, "in": "query", "description": words});
    match dialect {
        Dialect::V3 => told["schema"] = json!({"type": kind, "uniqueItems": true}),
        Dialect::V2 => {
            told["type"] = kind.into();
            told["uniqueItems"] = true.into();
        }
    }
    told
}

/// The forms of a patch. Custom kinds know no merge keys, so they take no strategic merge.
fn patch_forms(resource: &Resource<'_>) -> Vec<&'static str> {
    let mut forms =
        vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    if matches!(resource.schema, Source::Builtin(_)) {
        forms.push("application/strategic-merge-patch+json");
    }
    forms
}

fn told(operation: &Operation<'_>, resource: &Resource<'_>, dialect: Dialect) -> Value {
    let (group, version, kind) = operation.kind;
    let mut parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|(name, kind, words)| parameter(name, kind, words, dialect))
        .collect();
    let mut told = json!({
        "description": operation.words,
        "operationId": operation.id,
        "tags": [tag(resource)],
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    let body_forms = if operation.method == "patch" {
        patch_forms(resource)
    } else {
        vec!["application/json", "application/yaml"]
    };
    let answers = ["application/json", "application/yaml"];
    let answer = (!operation.answer.is_empty()).then(|| dialect.reference(&operation.answer));
    match dialect {
        Dialect::V3 => {
            let content = |forms: &[&str], schema: &Value| -> Value {
                forms.iter().map(|form| ((*form).to_owned(), json!({"schema": schema}))).collect()
            };
            if let Some(body) = &operation.body {
                told["requestBody"] = json!({"content": content(&body_forms, &dialect.reference(body)), "required": operation.method != "delete"});
            }
            let mut ok = json!({"description": "OK"});
            if let Some(answer) = answer {
                ok["content"] = content(&answers, &answer);
            }
            told["responses"] = json!({"200": ok, "401": {"description": "Unauthorized"}});
        }
        Dialect::V2 => {
            if let Some(body) = &operation.body {
                let required = operation.method != "delete";
                parameters.insert(
                    0,
                    json!({"name": "body", "in": "body", "required": required, "schema": dialect.reference(body)}),
                );
            }
            let mut ok = json!({"description": "OK"});
            if let Some(answer) = answer {
                ok["schema"] = answer;
            }
            told["responses"] = json!({"200": ok, "401": {"description": "Unauthorized"}});
            told["schemes"] = json!(["https"]);
            told["consumes"] = if operation.method == "patch" { body_forms.into() } else { json!(["*/*"]) };
            told["produces"] = answers.to_vec().into();
        }
    }
    if !parameters.is_empty() {
        told["parameters"] = parameters.into();
    }
    told
}

/// `apps_v1`
fn tag(resource: &Resource<'_>) -> String {
    let group = match resource.group {
        "" => "core",
        group => group.strip_suffix(".k8s.io").unwrap_or(group),
    };
    format!("{}_{}", group.replace('.', "_"), resource.version)
}
