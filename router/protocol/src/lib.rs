//! The inference APIs that the router understands: OpenAI, Anthropic, SGLang and tokenised prompts.
//!
//! Bodies are forwarded unchanged. This crate inspects them: it finds the route, reads the few members that matter,
//! fingerprints the prompt, follows a response's events and usage, and writes errors in each API's format.

pub mod claim;
pub mod error;
pub mod family;
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
