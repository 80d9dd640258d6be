//! The JSON schema of the file, derived from [`File`]. It is the only description of keys, types, ranges, defaults and
//! meanings: the check, the reference and editors use it.

use serde_json::Value as Json;

use crate::configuration::File;
use crate::schema::{schema_of, strings};

/// Returns the JSON schema (draft 2020-12) of the configuration file.
pub fn schema() -> Json {
    let mut root = schema_of::<File>();
    forget_defaults_of_required_keys(&mut root);
    root
}

/// Removes the defaults of required keys, which schemars writes because of serde's `default` on the section.
fn forget_defaults_of_required_keys(schema: &mut Json) {
    if let Some(definitions) = schema.get_mut("$defs").and_then(Json::as_object_mut) {
        definitions
            .values_mut()
            .for_each(forget_defaults_of_required_keys);
    }
    let required: Vec<String> = strings(schema.get("required")).map(str::to_owned).collect();
    for key in required {
        let pointer = format!("/properties/{key}");
        if let Some(property) = schema.pointer_mut(&pointer).and_then(Json::as_object_mut) {
            property.remove("default");
        }
    }
}
