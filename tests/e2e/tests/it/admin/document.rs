//! The OpenAPI document agrees with the server. `make test-admin` checks that thoroughly.

use serde_json::Value;
use tailroute_e2e::fleet::Fleet;

use super::{ask, get};

#[tokio::test]
async fn the_document_describes_every_operation_and_all_references_resolve() {
    let fleet = Fleet::of(1).await;
    let document = get(&fleet, "/admin/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            ids.push(operation["operationId"].as_str().unwrap().to_owned());
            let asked = path.replace("{name}", "nobody");
            if method == "get" && !path.ends_with("/events") {
                let answer = ask(&fleet, ("GET", &asked), &[], None).await;
                let status = answer.status.as_str();
                let described = &operation["responses"][status];
                assert!(
                    described.is_object(),
                    "{path} answers {status}, which is not described"
                );
                let kind = answer.header("content-type").unwrap();
                assert!(described["content"][kind].is_object(), "{path} answers {kind}");
            }
        }
    }
    let operations = admin::operations();
    assert_eq!(ids.len(), operations.len());
    for operation in &operations {
        assert!(ids.iter().any(|id| id == operation.id), "{}", operation.id);
    }
    resolves(&document, &document);
}

fn resolves(document: &Value, value: &Value) {
    match value {
        Value::Object(entries) => {
            if let Some(reference) = entries.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            entries.values().for_each(|value| resolves(document, value));
        }
        Value::Array(elements) => elements.iter().for_each(|value| resolves(document, value)),
        _ => {}
    }
}
