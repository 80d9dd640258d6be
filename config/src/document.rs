//! Documents of the admin API, checked like the file: by the schema of their type, with all mistakes reported at once.

mod worker;

pub use worker::WorkerDocument;

use policy::route::{CacheAware, Settings, Weights};
use schemars::{JsonSchema, Schema as Written, SchemaGenerator};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::problem::{Origin, Problem, Problems};
use crate::read::converted;
use crate::schema::{Schema, schema_of};
use crate::sections::objective::Class;
use crate::sections::routing::{Routing, misnamed};
use crate::tree::{Node, Value};
use crate::validate::validate;

/// Reads a JSON document, where `null` stands for an absent key. Fails with all problems and their keys, never with
/// none.
pub fn read_document<T: DeserializeOwned + JsonSchema>(document: &Json) -> Result<T, Problems> {
    read(Node::from_json(document, &Origin::Nowhere))
}

/// Reads the parameters of a query, whose values are text. Fails with all problems and their parameters, never with
/// none.
pub fn read_query<T: DeserializeOwned + JsonSchema>(
    parameters: impl IntoIterator<Item = (String, String)>,
) -> Result<T, Problems> {
    let parameter = |(name, text): (String, String)| {
        let origin = Origin::Query { name: name.clone() };
        let value = Value::Text(text);
        (name, Node { origin, value })
    };
    read(Node {
        origin: Origin::Nowhere,
        value: Value::Table(parameters.into_iter().map(parameter).collect()),
    })
}

fn read<T: DeserializeOwned + JsonSchema>(mut root: Node) -> Result<T, Problems> {
    let schema = schema_of::<T>();
    let mut problems = Problems::default();
    validate(&mut root, Schema::of(&schema), "", &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    converted(&root, &mut problems).ok_or(problems)
}

/// A policy and all of its weights, as the admin API returns and accepts it. Keys and ranges are those of `[routing]`.
/// All keys are required, since an omitted weight would otherwise change.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct PolicyDocument(Settings);

impl PolicyDocument {
    /// Converts the document to settings, where turns are of these classes. `key` is where the document is in the
    /// request. Fails with the overrides that cannot apply to any turn.
    pub fn settings(&self, key: &str, classes: &[Class]) -> Result<Settings, Problems> {
        let mut problems = Problems::default();
        for (path, what, hint) in misnamed(&self.0.classes, &self.0.named, classes) {
            problems.push(Problem {
                origin: Origin::Nowhere,
                path: format!("{key}.{path}"),
                what,
                hint,
            });
        }
        if problems.is_empty() {
            Ok(self.0.clone())
        } else {
            Err(problems)
        }
    }

    /// Converts the document to settings. Overrides for unknown classes are kept without effect.
    pub fn settings_for_any_classes(&self) -> Settings {
        self.0.clone()
    }
}

impl JsonSchema for PolicyDocument {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PolicyDocument".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Written {
        let routing = Routing::json_schema(generator).to_value();
        let of_routing = |key: &str| routing.pointer(&format!("/properties/{key}")).cloned();
        let overrides = |key: &str| of_routing(key).map(without_default);
        let parts = [
            ("classes", overrides("classes")),
            ("named", overrides("named")),
            ("policy", of_routing("policy")),
            ("kappa_max", of_routing("kappa_max")),
            ("weights", Some(Weights::json_schema(generator).to_value())),
            ("cache_aware", Some(CacheAware::json_schema(generator).to_value())),
        ];
        let properties: serde_json::Map<_, _> = parts
            .into_iter()
            .map(|(key, part)| (key.to_owned(), whole(part.unwrap_or_default())))
            .collect();
        let mut schema = Written::default();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert(
            "description".to_owned(),
            json!("A policy and all of its weights."),
        );
        schema.insert("properties".to_owned(), Json::Object(properties));
        let schema = whole(schema.to_value());
        Written::try_from(schema).unwrap_or_default()
    }
}

/// Removes the default of a section: the key is required, and may be empty.
fn without_default(mut schema: Json) -> Json {
    if let Some(entries) = schema.as_object_mut() {
        entries.remove("default");
    }
    schema
}

/// Makes all keys of a section required, and refuses others.
fn whole(mut schema: Json) -> Json {
    if let Some(entries) = schema.as_object_mut() {
        entries.remove("default");
        if let Some(properties) = entries.get_mut("properties").and_then(Json::as_object_mut) {
            for property in properties.values_mut().filter_map(Json::as_object_mut) {
                property.remove("default");
            }
            let required: Vec<_> = properties.keys().cloned().collect();
            entries.insert("required".to_owned(), json!(required));
            entries.insert("additionalProperties".to_owned(), json!(false));
        }
    }
    schema
}
