//! The OpenAPI 3.1 document, generated from the table of operations.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::{PROBLEM_JSON, Problem};

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation::get::<Map<String, Value>, _, _>(
        "openapi.get",
        "/admin/v1/openapi.json",
        "This document",
        |_: Call| async { Reply::json(&document(&super::operations())) },
    )]
}

/// Returns the OpenAPI document of these operations.
pub fn document(operations: &[Operation]) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in operations {
        let method = operation.method.as_str().to_ascii_lowercase();
        let described = describe(operation, &mut generator);
        paths.entry(operation.path).or_default().insert(method, described);
    }
    let _ = generator.subschema_for::<Problem>();
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tailroute: the admin port",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Metrics are at /metrics, health at /livez and /readyz. Every other answer is described here.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "A token of admin.tokens_file; not required if there is no such file." },
            },
        },
    })
}

fn describe(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "description": format!("Requires a token with the role {}.", operation.role),
        "tags": [operation.id.split('.').next().unwrap_or_default()],
        "parameters": parameters(operation, generator),
        "responses": responses(operation, generator),
    });
    if let Some(shape) = operation.body {
        let schema = shape(generator);
        described["requestBody"] = json!({
            "required": true, "content": { "application/json": { "schema": schema } },
        });
    }
    described
}

fn parameters(operation: &Operation, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut parameters: Vec<Value> = Vec::new();
    for (name, meaning) in &operation.parameters {
        parameters.push(json!({
            "name": name, "in": "path", "required": true, "description": meaning,
            "schema": { "type": "string", "minLength": 1 },
        }));
    }
    for (name, meaning, required) in &operation.headers {
        parameters.push(json!({
            "name": name, "in": "header", "required": required, "description": meaning,
            "schema": { "type": "string" },
        }));
    }
    if let Some(shape) = operation.query {
        parameters.extend(of_query(&shape(generator)));
    }
    parameters
}

/// Returns the parameters of a query. Its type is an object with one property per parameter.
fn of_query(schema: &Schema) -> Vec<Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let meaning = schema
            .as_object_mut()
            .and_then(|schema| schema.remove("description"));
        json!({
            "name": name, "in": "query", "required": required.contains(&name.as_str()),
            "description": meaning, "schema": schema,
        })
    };
    properties.into_iter().flatten().map(parameter).collect()
}

fn responses(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    let answer = &operation.answer;
    let content = match answer.shape {
        Some(shape) => json!({ answer.media_type: { "schema": shape(generator) } }),
        None => json!({ answer.media_type: { "schema": { "type": "string" } } }),
    };
    let header = |(name, meaning): &(&str, &str)| {
        let described = json!({ "description": meaning, "required": true, "schema": { "type": "string" } });
        ((*name).to_owned(), described)
    };
    let headers: Map<String, Value> = answer.headers.iter().map(header).collect();
    let described = json!({ "description": operation.summary, "content": content, "headers": headers });
    responses.insert(answer.status.to_string(), described);
    for status in statuses(operation) {
        let meaning = StatusCode::from_u16(status)
            .ok()
            .and_then(|status| status.canonical_reason());
        let schema = generator.subschema_for::<Problem>();
        let described = json!({ "description": meaning.unwrap_or_default(), "content": { PROBLEM_JSON: { "schema": schema } } });
        responses.insert(status.to_string(), described);
    }
    Value::Object(responses)
}

/// Returns the statuses of an operation's problems: its own, and those implied by its inputs.
fn statuses(operation: &Operation) -> Vec<u16> {
    // Any request may have a path that is not UTF-8, or a body that is too long or too slow.
    let mut statuses = vec![400, 401, 403, 405, 408, 413];
    if !operation.method.is_safe() {
        statuses.extend([415, 422]);
    }
    statuses.extend(&operation.problems);
    statuses.sort_unstable();
    statuses.dedup();
    statuses
}
