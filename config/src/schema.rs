//! Reads JSON schemas that are derived from types.

use serde_json::Value as Json;

pub(crate) fn schema_of<T: schemars::JsonSchema>() -> Json {
    schemars::schema_for!(T).to_value()
}

/// A schema and the document that its references point into.
#[derive(Clone, Copy)]
pub(crate) struct Schema<'a> {
    root: &'a Json,
    /// The schema as written at the key, with its own description and default.
    pub(crate) here: &'a Json,
}

impl<'a> Schema<'a> {
    pub(crate) fn of(root: &'a Json) -> Self {
        Self { root, here: root }
    }

    /// Returns the target of a `$ref`, or the schema itself.
    fn resolved(self) -> &'a Json {
        let target = self
            .here
            .get("$ref")
            .and_then(Json::as_str)
            .and_then(|reference| self.root.pointer(reference.strip_prefix('#')?));
        target.unwrap_or(self.here)
    }

    /// Returns a keyword of the key itself, or else of the target of its reference.
    pub(crate) fn keyword(self, name: &str) -> Option<&'a Json> {
        self.here.get(name).or_else(|| self.resolved().get(name))
    }

    pub(crate) fn text(self, name: &str) -> Option<&'a str> {
        self.keyword(name).and_then(Json::as_str)
    }

    /// Returns the type: `object`, `array`, `string`, `integer`, `number` or `boolean`. For an optional key it is that
    /// of the value.
    pub(crate) fn kind(self) -> &'a str {
        match self.keyword("type") {
            Some(Json::String(kind)) => kind,
            Some(kinds @ Json::Array(_)) => strings(Some(kinds))
                .find(|kind| *kind != "null")
                .unwrap_or("string"),
            // A choice between documented constants.
            _ => "string",
        }
    }

    pub(crate) fn properties(self) -> impl Iterator<Item = (&'a str, Schema<'a>)> {
        let root = self.root;
        let properties = self.keyword("properties").and_then(Json::as_object);
        properties
            .into_iter()
            .flatten()
            .map(move |(key, here)| (key.as_str(), Schema { root, here }))
    }

    pub(crate) fn property(self, key: &str) -> Option<Schema<'a>> {
        self.properties()
            .find(|(name, _)| *name == key)
            .map(|(_, schema)| schema)
    }

    /// Returns the schema of the entries of a section whose keys are names chosen by the operator.
    pub(crate) fn values(self) -> Option<Schema<'a>> {
        let here = self
            .keyword("additionalProperties")
            .filter(|values| values.is_object())?;
        let root = self.root;
        Some(Schema { root, here })
    }

    pub(crate) fn required(self) -> impl Iterator<Item = &'a str> {
        strings(self.keyword("required"))
    }

    pub(crate) fn items(self) -> Option<Schema<'a>> {
        self.keyword("items").map(|here| Schema {
            root: self.root,
            here,
        })
    }

    /// Returns the values that a string may take, each with its meaning, if they are enumerated.
    pub(crate) fn choices(self) -> Vec<(&'a str, Option<&'a str>)> {
        let mut choices: Vec<_> = strings(self.keyword("enum")).map(|name| (name, None)).collect();
        for choice in self
            .keyword("oneOf")
            .and_then(Json::as_array)
            .into_iter()
            .flatten()
        {
            let meaning = choice.get("description").and_then(Json::as_str);
            choices.extend(
                choice
                    .get("const")
                    .and_then(Json::as_str)
                    .map(|name| (name, meaning)),
            );
            choices.extend(strings(choice.get("enum")).map(|name| (name, meaning)));
        }
        choices
    }
}

pub(crate) fn strings(list: Option<&Json>) -> impl Iterator<Item = &str> {
    list.and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
}
