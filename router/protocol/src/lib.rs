//! The inference APIs that the router understands: OpenAI's, Anthropic's, and those of the engines.
//!
//! This crate finds the route of a request, reads the few members of its body that matter, fingerprints the prompt,
//! follows a response's events and usage, and writes errors in each API's format. A body is edited in place where the
//! router has to set or remove a member ([`splice`]), and is otherwise forwarded as it came.

pub mod api;
pub mod claim;
pub mod error;
pub mod fingerprint;
pub mod first_event;
pub mod headers;
pub mod json;
pub mod lacks_model;
pub mod mend;
pub mod model;
pub mod multipart;
pub mod names;
pub mod parse;
pub mod references;
pub mod reply;
pub mod routes;
pub mod splice;
pub mod steering;
pub mod tenant;
pub mod verdict;
pub mod watch;
