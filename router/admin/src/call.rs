//! A call of an operation and its successful response.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::problem::Problem;
use super::reason;
use crate::Admin;
use operator::tokens::Principal;

/// An authenticated call of an operation.
#[derive(Debug)]
pub struct Call {
    pub admin: Arc<Admin>,
    /// The authenticated caller.
    pub who: Principal,
    pub headers: HeaderMap,
    pub(super) parameters: Vec<(String, String)>,
    pub(super) query: String,
    pub(super) body: Bytes,
}

/// A successful response, with what the audit log records of it.
#[derive(Debug)]
pub struct Reply {
    pub(super) response: Response,
    pub(super) target: Option<String>,
    pub(super) change: (Option<Value>, Option<Value>),
}

impl Reply {
    /// Creates a response with the value as JSON. Fails if the value cannot be serialised.
    pub fn json(value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| Problem::internal(error.to_string()))?;
        Ok(Self::of_type("application/json", body))
    }

    /// Creates a response with bytes or a stream of this media type.
    pub fn of_type(media_type: &'static str, body: impl Into<Body>) -> Self {
        let mut response = Response::new(body.into());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        // The state may change at any time.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Self {
            response,
            target: None,
            change: (None, None),
        }
    }

    /// Adds a header field, unless its value is invalid.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.response.headers_mut().insert(name, value);
        }
        self
    }

    /// Sets the states before and after the change, for the audit log.
    #[must_use]
    pub fn changed(mut self, before: &impl Serialize, after: &impl Serialize) -> Self {
        self.change = (
            serde_json::to_value(before).ok(),
            serde_json::to_value(after).ok(),
        );
        self
    }

    /// Names the changed object for the audit log, where the path does not.
    #[must_use]
    pub fn target(mut self, target: &str) -> Self {
        self.target = Some(target.to_owned());
        self
    }
}

impl Call {
    /// Parses and validates the body. Fails with 400 if it is not JSON, with 422 and the fields if it is invalid.
    pub fn body<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, Problem> {
        let json: Value = serde_json::from_slice(&self.body)
            .map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
        if let Some(wrong) = json.get("reason").and_then(Value::as_str).and_then(reason::wrong) {
            return Err(Problem::invalid_field("reason", wrong));
        }
        config::read_document(&json).map_err(|problems| Problem::invalid(&problems))
    }

    /// Parses and validates the query. Fails with 400 and the invalid parameters.
    pub fn query<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, Problem> {
        let pairs: Vec<(String, String)> = form_urlencoded::parse(self.query.as_bytes())
            .into_owned()
            .collect();
        config::read_query(pairs).map_err(|problems| Problem::query(&problems))
    }

    /// Returns a path parameter, or an empty string if the path has none of this name.
    pub fn parameter(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }
}
