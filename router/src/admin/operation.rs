//! An operation of the admin port: all that routes, checks, audit log, metrics and the OpenAPI document need to know of it.

use std::fmt;
use std::pin::Pin;

use axum::http::Method;
use config::Role;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::call::{Call, Reply};
use super::problem::Problem;

/// The schema of a type, for the document.
pub type Shape = fn(&mut SchemaGenerator) -> Schema;

type Answering = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;
type Handler = Box<dyn Fn(Call) -> Answering + Send + Sync>;

/// One operation.
pub struct Operation {
    /// Its name: `operationId` in the document, `operation` in metrics, `action` in the audit log.
    pub id: &'static str,
    /// The method.
    pub method: Method,
    /// The path, parameters in braces.
    pub path: &'static str,
    /// What a token must be allowed.
    pub role: Role,
    /// One line of what it does.
    pub summary: &'static str,
    /// Path parameters, each with what it means.
    pub parameters: Vec<(&'static str, &'static str)>,
    /// What the query may hold.
    pub query: Option<Shape>,
    /// What the body has to be.
    pub body: Option<Shape>,
    /// Header fields that it reads, each with what it means and whether it has to be there.
    pub headers: Vec<(&'static str, &'static str, bool)>,
    /// What it answers when all is well.
    pub answer: Answer,
    /// Whether what is asked for is written down in the audit log.
    pub audited: bool,
    /// Statuses of problems beside those that follow from the above.
    pub problems: Vec<u16>,
    pub(super) handler: Handler,
}

/// What an operation answers when all is well.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The media type.
    pub media_type: &'static str,
    /// The schema of the body, if it is JSON.
    pub shape: Option<Shape>,
    /// Header fields of the answer, each with what it means.
    pub headers: Vec<(&'static str, &'static str)>,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.method, self.path, self.id)
    }
}

impl Operation {
    /// An operation that answers JSON of type `T`, with status 200.
    pub fn new<T: JsonSchema, F, R>(
        id: &'static str,
        (method, path): (Method, &'static str),
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
            answer: Answer {
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

    /// It has a parameter in its path.
    #[must_use]
    pub fn parameter(mut self, name: &'static str, meaning: &'static str) -> Self {
        self.parameters.push((name, meaning));
        self
    }

    /// Its query is a `T`.
    #[must_use]
    pub fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(|generator| T::json_schema(generator));
        self
    }

    /// Its body is a `T`.
    #[must_use]
    pub fn body<T: JsonSchema>(mut self) -> Self {
        self.body = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// It reads a header field.
    #[must_use]
    pub fn reads(mut self, name: &'static str, meaning: &'static str, required: bool) -> Self {
        self.headers.push((name, meaning, required));
        self
    }

    /// Its answer carries a header field.
    #[must_use]
    pub fn carries(mut self, name: &'static str, meaning: &'static str) -> Self {
        self.answer.headers.push((name, meaning));
        self
    }

    /// Its answer is no JSON.
    #[must_use]
    pub fn of_type(mut self, media_type: &'static str) -> Self {
        self.answer.media_type = media_type;
        self.answer.shape = None;
        self
    }

    /// It may also be answered by problems of these statuses.
    #[must_use]
    pub fn fails(mut self, statuses: &[u16]) -> Self {
        self.problems.extend(statuses);
        self
    }

    /// It changes nothing, though not everybody may ask it.
    #[must_use]
    pub fn unaudited(mut self) -> Self {
        self.audited = false;
        self
    }
}
