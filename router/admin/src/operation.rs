//! An operation of the admin port, as routing, validation, audit log, metrics and the OpenAPI document use it.

use std::fmt;
use std::pin::Pin;

use axum::http::Method;
use config::Role;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::call::{Call, Reply};
use super::problem::Problem;

/// Generates the schema of a type.
pub type Shape = fn(&mut SchemaGenerator) -> Schema;

type Answering = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;
type Handler = Box<dyn Fn(Call) -> Answering + Send + Sync>;

/// An operation of the admin port.
pub struct Operation {
    /// `operationId` in the OpenAPI document, `operation` in metrics, `action` in the audit log.
    pub id: &'static str,
    pub method: Method,
    /// Path, with parameters in braces.
    pub path: &'static str,
    pub role: Role,
    /// Summary in one line.
    pub summary: &'static str,
    /// Name and description of each path parameter.
    pub parameters: Vec<(&'static str, &'static str)>,
    /// Schema of the query: an object with one property per parameter.
    pub query: Option<Shape>,
    /// Schema of the request's body.
    pub body: Option<Shape>,
    /// Name and description of each request header field, and whether it is required.
    pub headers: Vec<(&'static str, &'static str, bool)>,
    pub answer: OperationResponse,
    /// Whether calls are recorded in the audit log.
    pub audited: bool,
    /// Statuses of problems beyond the implied ones.
    pub problems: Vec<u16>,
    pub(super) handler: Handler,
}

/// The successful response of an operation.
pub struct OperationResponse {
    pub status: u16,
    pub media_type: &'static str,
    /// Schema of the body; `None` if it is not JSON.
    pub shape: Option<Shape>,
    /// Name and description of each response header field.
    pub headers: Vec<(&'static str, &'static str)>,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.method, self.path, self.id)
    }
}

impl Operation {
    /// Creates an operation that responds with 200 and JSON of type `T`.
    pub fn new<T: JsonSchema, F, R>(
        id: &'static str,
        method: Method,
        path: &'static str,
        role: Role,
        summary: &'static str,
        handler: F,
    ) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self {
            id,
            method,
            path,
            role,
            summary,
            parameters: Vec::new(),
            query: None,
            body: None,
            headers: Vec::new(),
            answer: OperationResponse {
                status: 200,
                media_type: "application/json",
                shape: Some(|generator| generator.subschema_for::<T>()),
                headers: Vec::new(),
            },
            audited: role > Role::Read,
            problems: Vec::new(),
            handler: Box::new(move |call| Box::pin(handler(call))),
        }
    }

    /// Creates an operation that only reads, and responds with 200 and JSON of type `T`.
    pub fn get<T: JsonSchema, F, R>(
        id: &'static str,
        path: &'static str,
        summary: &'static str,
        handler: F,
    ) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self::new::<T, F, R>(id, Method::GET, path, Role::Read, summary, handler)
    }

    /// Adds a path parameter.
    #[must_use]
    pub fn parameter(mut self, name: &'static str, meaning: &'static str) -> Self {
        self.parameters.push((name, meaning));
        self
    }

    /// Sets the type of the query.
    #[must_use]
    pub fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(|generator| T::json_schema(generator));
        self
    }

    /// Sets the type of the body.
    #[must_use]
    pub fn body<T: JsonSchema>(mut self) -> Self {
        self.body = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// Adds a request header field.
    #[must_use]
    pub fn reads(mut self, name: &'static str, meaning: &'static str, required: bool) -> Self {
        self.headers.push((name, meaning, required));
        self
    }

    /// Adds a response header field.
    #[must_use]
    pub fn carries(mut self, name: &'static str, meaning: &'static str) -> Self {
        self.answer.headers.push((name, meaning));
        self
    }

    /// Sets a media type other than JSON, and removes the schema.
    #[must_use]
    pub fn of_type(mut self, media_type: &'static str) -> Self {
        self.answer.media_type = media_type;
        self.answer.shape = None;
        self
    }

    /// Adds statuses of problems to those that every operation has.
    #[must_use]
    pub fn fails(mut self, statuses: &[u16]) -> Self {
        self.problems.extend(statuses);
        self
    }

    /// Excludes the operation from the audit log, for one that changes nothing but requires a higher role.
    #[must_use]
    pub fn unaudited(mut self) -> Self {
        self.audited = false;
        self
    }
}
