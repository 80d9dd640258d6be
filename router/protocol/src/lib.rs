//! The inference APIs that the router understands: OpenAI, Anthropic, SGLang and tokenised prompts.
//!
//! Bodies are forwarded unchanged. This crate only inspects them: it finds the route, reads the few members that
//! matter, fingerprints the prompt, follows a response's events and usage, and writes errors in each API's format.
//!
//! | module | contents |
//! |---|---|
//! | [`routes`] | endpoint and API of a path |
//! | [`headers`] | headers that are forwarded, set or removed |
//! | [`json`], [`multipart`] | scanners of bodies |
//! | [`parse`] | one pass over a request's body |
//! | [`fingerprint`] | keys of the prompt |
//! | [`splice`] | sets or removes a member of a body |
//! | [`steering`] | fields that only the router may send to an engine |
//! | [`tenant`] | names and salts that keep tenants apart |
//! | [`watch`], [`reply`] | usage of a streamed response, and keys of its reply |
//! | [`claim`] | bounds on a response's token counts |
//! | [`mend`] | final event of an interrupted stream |
//! | [`error`], [`names`] | errors in each API's format; bounds on external names |

pub mod claim;
pub mod error;
pub mod fingerprint;
pub mod headers;
pub mod json;
pub mod mend;
pub mod multipart;
pub mod names;
pub mod parse;
pub mod reply;
pub mod routes;
pub mod splice;
pub mod steering;
pub mod tenant;
pub mod watch;
