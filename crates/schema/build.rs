//! Reads the Kubernetes types the workspace depends on, joins them with `facts.txt`, and writes what the crate
//! carries: `types` (fields and shapes) and `descriptions` (the prose, for `kubectl explain`), both deflated.
//!
//! The format is read by `src/types/load.rs`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use k8s_openapi::{ListableResource, Resource};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Types whose values are not what their JSON type says, and their letters.
const SPECIAL: &[(&str, &str)] = &[
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", "q"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", "t"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime", "u"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", "f"),
    ("io.k8s.apimachinery.pkg.runtime.RawExtension", "x"),
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", "p"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", "*"),
];

/// A schema, or something simpler in its place.
const EITHER: &[&str] = &[
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
];
const EITHER_SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

fn main() -> Outcome<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=facts.txt");
    let mut kinds = Kinds::default();
    kinds.read();
    let mut types = Types::read(kinds.generator.take_definitions(true))?;
    for (name, kind) in &kinds.lists {
        types.add_list(name, kind);
    }
    types.learn(&std::fs::read_to_string("facts.txt")?)?;
    let out = std::env::var("OUT_DIR")?;
    let out = Path::new(&out);
    std::fs::write(out.join("types"), deflate(&types.render(&kinds.named)?)?)?;
    std::fs::write(out.join("descriptions"), deflate(&types.render_descriptions())?)?;
    Ok(())
}

/// The kinds, and the types they are made of.
#[derive(Default)]
struct Kinds {
    generator: SchemaGenerator,
    /// Type, group, version, kind.
    named: Vec<(String, String, String, String)>,
    /// Type of the list, type of its items.
    lists: Vec<(String, String)>,
}

struct Types {
    types: BTreeMap<String, Type>,
}

#[derive(Default)]
struct Type {
    description: String,
    atomic: bool,
    fields: BTreeMap<String, Field>,
}

#[derive(Default)]
struct Field {
    shape: String,
    description: String,
    attributes: Vec<String>,
}

// === impl Kinds ===

macro_rules! kinds {
    ($self:ident, one: [$($one:path),* $(,)?], listed: [$($listed:path),* $(,)?]) => {
        $($self.one::<$one>();)*
        $($self.listed::<$listed>();)*
    };
}

impl Kinds {
    fn one<T: JsonSchema + Resource>(&mut self) {
        self.generator.subschema_for::<T>();
        let kind = (T::GROUP.to_owned(), T::VERSION.to_owned(), T::KIND.to_owned());
        self.named.push((T::schema_name().into_owned(), kind.0, kind.1, kind.2));
    }

    fn listed<T: JsonSchema + ListableResource>(&mut self) {
        self.one::<T>();
        let name = T::schema_name().into_owned();
        let list = format!("{}{}", name.trim_end_matches(T::KIND), T::LIST_KIND);
        self.named.push((list.clone(), T::GROUP.to_owned(), T::VERSION.to_owned(), T::LIST_KIND.to_owned()));
        self.lists.push((list, name));
    }

    fn read(&mut self) {
        use k8s_openapi::api;
        use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
        use k8s_openapi::apimachinery::pkg::apis::meta;
        self.generator.subschema_for::<meta::v1::DeleteOptions>();
        self.generator.subschema_for::<meta::v1::ListMeta>();
        kinds!(self,
            one: [
                api::authentication::v1::SelfSubjectReview,
                api::authentication::v1::TokenRequest,
                api::authentication::v1::TokenReview,
                api::authorization::v1::LocalSubjectAccessReview,
                api::authorization::v1::SelfSubjectAccessReview,
                api::authorization::v1::SelfSubjectRulesReview,
                api::authorization::v1::SubjectAccessReview,
                api::autoscaling::v1::Scale,
                api::core::v1::Binding,
                api::policy::v1::Eviction,
                meta::v1::APIGroup,
                meta::v1::APIGroupList,
                meta::v1::APIResourceList,
                meta::v1::APIVersions,
                meta::v1::Status,
            ],
            listed: [
                api::admissionregistration::v1::MutatingAdmissionPolicy,
                api::admissionregistration::v1::MutatingAdmissionPolicyBinding,
                api::admissionregistration::v1::MutatingWebhookConfiguration,
                api::admissionregistration::v1::ValidatingAdmissionPolicy,
                api::admissionregistration::v1::ValidatingAdmissionPolicyBinding,
                api::admissionregistration::v1::ValidatingWebhookConfiguration,
                api::apps::v1::ControllerRevision,
                api::apps::v1::DaemonSet,
                api::apps::v1::Deployment,
                api::apps::v1::ReplicaSet,
                api::apps::v1::StatefulSet,
                api::autoscaling::v1::HorizontalPodAutoscaler,
                api::autoscaling::v2::HorizontalPodAutoscaler,
                api::batch::v1::CronJob,
                api::batch::v1::Job,
                api::certificates::v1::CertificateSigningRequest,
                api::certificates::v1beta1::ClusterTrustBundle,
                api::coordination::v1::Lease,
                api::core::v1::ComponentStatus,
                api::core::v1::ConfigMap,
                api::core::v1::Endpoints,
                api::core::v1::Event,
                api::core::v1::LimitRange,
                api::core::v1::Namespace,
                api::core::v1::Node,
                api::core::v1::PersistentVolume,
                api::core::v1::PersistentVolumeClaim,
                api::core::v1::Pod,
                api::core::v1::PodTemplate,
                api::core::v1::ReplicationController,
                api::core::v1::ResourceQuota,
                api::core::v1::Secret,
                api::core::v1::Service,
                api::core::v1::ServiceAccount,
                api::discovery::v1::EndpointSlice,
                api::events::v1::Event,
                api::flowcontrol::v1::FlowSchema,
                api::flowcontrol::v1::PriorityLevelConfiguration,
                api::networking::v1::IPAddress,
                api::networking::v1::Ingress,
                api::networking::v1::IngressClass,
                api::networking::v1::NetworkPolicy,
                api::networking::v1::ServiceCIDR,
                api::node::v1::RuntimeClass,
                api::policy::v1::PodDisruptionBudget,
                api::rbac::v1::ClusterRole,
                api::rbac::v1::ClusterRoleBinding,
                api::rbac::v1::Role,
                api::rbac::v1::RoleBinding,
                api::resource::v1::DeviceClass,
                api::resource::v1::ResourceClaim,
                api::resource::v1::ResourceClaimTemplate,
                api::resource::v1::ResourceSlice,
                api::scheduling::v1::PriorityClass,
                api::storage::v1::CSIDriver,
                api::storage::v1::CSINode,
                api::storage::v1::CSIStorageCapacity,
                api::storage::v1::StorageClass,
                api::storage::v1::VolumeAttachment,
                api::storage::v1::VolumeAttributesClass,
                apiextensions::v1::CustomResourceDefinition,
                k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService,
            ]
        );
    }
}

// === impl Types ===

impl Types {
    fn read(definitions: impl IntoIterator<Item = (String, Value)>) -> Outcome<Types> {
        let mut types = BTreeMap::new();
        for (name, definition) in definitions {
            let mut read = Type { description: text(&definition), ..Type::default() };
            let required = definition["required"].as_array().cloned().unwrap_or_default();
            for (field, schema) in definition["properties"].as_object().into_iter().flatten() {
                let mut attributes = Vec::new();
                // The dependency wants metadata in every kind; a request may leave it out.
                if field != "metadata" && required.iter().any(|r| r == field.as_str()) {
                    attributes.push("r".to_owned());
                }
                let shape = shape(schema).ok_or_else(|| format!("{name}.{field}: unknown shape {schema}"))?;
                read.fields.insert(field.clone(), Field { shape, description: text(schema), attributes });
            }
            types.insert(name, read);
        }
        Ok(Types { types })
    }

    /// The list of a kind: the dependency has one generic type for all of them.
    fn add_list(&mut self, name: &str, item: &str) {
        let kind = item.rsplit('.').next().unwrap_or(item);
        let mut list = Type { description: format!("{kind}List is a list of {kind}."), ..Type::default() };
        let inherited = self.types.get(item);
        for field in ["apiVersion", "kind"] {
            let description = inherited.and_then(|t| t.fields.get(field)).map(|f| f.description.clone());
            let description = description.unwrap_or_default();
            list.fields.insert(field.into(), Field { shape: "s".into(), description, attributes: vec![] });
        }
        let items = Field {
            shape: format!("[@{item}"),
            description: format!("List of {kind} objects."),
            attributes: vec!["r".into()],
        };
        let metadata = Field {
            shape: format!("@{LIST_META}"),
            description: "Standard list metadata.".into(),
            attributes: vec!["a".into()],
        };
        list.fields.insert("items".into(), items);
        list.fields.insert("metadata".into(), metadata);
        self.types.insert(name.to_owned(), list);
    }

    /// Adds `facts.txt`. A line about a type or field that does not exist ends the build.
    fn learn(&mut self, facts: &str) -> Outcome<()> {
        for line in facts.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let mut words = line.split(' ');
            let (Some(short), Some(topic)) = (words.next(), words.next()) else {
                return Err(format!("facts.txt: {line}").into());
            };
            let name = long_name(short);
            let known = self.types.get_mut(&name).ok_or_else(|| format!("facts.txt: no type {name}"))?;
            for word in words {
                if (topic, word) == ("atomic", ".") {
                    known.atomic = true;
                    continue;
                }
                let (field, attribute) =
                    attribute(topic, word).ok_or_else(|| format!("facts.txt: {line}"))?;
                let known = known
                    .fields
                    .get_mut(field)
                    .ok_or_else(|| format!("facts.txt: no field {name}.{field}"))?;
                if topic == "optional" {
                    known.attributes.retain(|a| a != "r");
                } else {
                    known.attributes.push(attribute);
                }
            }
        }
        Ok(())
    }

    fn render(&self, kinds: &[(String, String, String, String)]) -> Outcome<String> {
        let is_plain =
            |name: &str| !EITHER.contains(&name) && SPECIAL.iter().all(|(special, _)| *special != name);
        let plain: Vec<&String> = self.types.keys().filter(|n| is_plain(n)).collect();
        let index: BTreeMap<&str, usize> = plain.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
        let mut out = String::new();
        for name in &plain {
            let known = &self.types[*name];
            writeln!(out, "={name}{}", if known.atomic { " a" } else { "" })?;
            for (name, field) in &known.fields {
                let shape = match field.shape.split_once('@') {
                    Some((before, to)) => {
                        let to = index.get(to).ok_or_else(|| format!("no type {to}"))?;
                        format!("{before}@{to}")
                    }
                    None => field.shape.clone(),
                };
                writeln!(out, "{name} {shape} {}", field.attributes.join(" "))?;
            }
        }
        for (name, group, version, kind) in kinds {
            writeln!(out, "!{} {group} {version} {kind}", index[name.as_str()])?;
        }
        Ok(out)
    }

    /// Type and field names with their prose; `\x1f` between, a newline after each but escaped inside.
    fn render_descriptions(&self) -> String {
        let mut out = String::new();
        for (name, known) in &self.types {
            let _ = writeln!(out, "={name}\x1f{}", escaped(&known.description));
            for (name, field) in &known.fields {
                if !field.description.is_empty() {
                    let _ = writeln!(out, "{name}\x1f{}", escaped(&field.description));
                }
            }
        }
        out
    }
}

fn text(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn shape(schema: &Value) -> Option<String> {
    if let Some(to) = schema["$ref"].as_str() {
        let name = to.strip_prefix("#/$defs/")?;
        if let Some((_, letter)) = SPECIAL.iter().find(|(special, _)| *special == name) {
            return Some((*letter).to_owned());
        }
        if EITHER.contains(&name) {
            return Some(format!("|@{EITHER_SCHEMA}"));
        }
        return Some(format!("@{name}"));
    }
    let format = schema["format"].as_str().unwrap_or_default();
    Some(match (schema["type"].as_str()?, format) {
        ("string", "byte") => "y".to_owned(),
        ("string", _) => "s".to_owned(),
        ("integer", "int32") => "i".to_owned(),
        ("integer", _) => "l".to_owned(),
        ("number", _) => "n".to_owned(),
        ("boolean", _) => "b".to_owned(),
        ("array", _) => format!("[{}", shape(&schema["items"])?),
        ("object", _) => match schema.get("additionalProperties") {
            Some(value) => format!("{{{}", shape(value)?),
            None => "x".to_owned(),
        },
        _ => return None,
    })
}

/// One word of a fact: the field and how the field's line says it.
fn attribute<'a>(topic: &str, word: &'a str) -> Option<(&'a str, String)> {
    let plain = |letter: &str| Some((word, letter.to_owned()));
    match topic {
        "atomic" => plain("A"),
        "optional" => plain(""),
        "set" => plain("S"),
        "pointer" => plain("p"),
        "always" => plain("a"),
        "omitted" => plain("o"),
        "keyed" => word.split_once(':').map(|(field, keys)| (field, format!("K{keys}"))),
        "default" => word.split_once('=').map(|(field, value)| (field, format!("D{value}"))),
        "merge" => {
            let (word, retain) = match word.strip_suffix("+retain") {
                Some(word) => (word, "R"),
                None => (word, ""),
            };
            match word.split_once(':') {
                Some((field, key)) => Some((field, format!("{}M{key}", retain))),
                None => Some((word, retain.to_owned())),
            }
        }
        _ => None,
    }
}

fn long_name(short: &str) -> String {
    for (prefix, long) in [
        ("meta.", "io.k8s.apimachinery.pkg.apis.meta."),
        ("apiextensions.", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions."),
        ("apiregistration.", "io.k8s.kube-aggregator.pkg.apis.apiregistration."),
    ] {
        if let Some(rest) = short.strip_prefix(prefix) {
            return format!("{long}{rest}");
        }
    }
    format!("io.k8s.api.{short}")
}

fn deflate(text: &str) -> Outcome<Vec<u8>> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes())?;
    Ok(encoder.finish()?)
}
