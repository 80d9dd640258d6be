//! The inference APIs as the router reads them: OpenAI's, Anthropic's, SGLang's, and prompts of tokens.
//!
//! Requests and answers pass as they came. What is here looks at them: it finds the route, reads the few members of a
//! body that matter, fingerprints the prompt, follows an answer's events and usage, and writes errors as each API does.
//!
//! | module | contents |
//! |---|---|
//! | [`routes`] | which endpoint a path is, and which API it belongs to |
//! | [`headers`] | which headers travel, and which end at the router |
//! | [`json`], [`multipart`] | scanners of bodies |
//! | [`parse`] | one pass over a request's body |
//! | [`fingerprint`] | the prompt's keys |
//! | [`splice`] | a member set in or taken out of a body |
//! | [`steering`] | fields that only the router may send to an engine |
//! | [`tenant`] | names and salts that keep tenants apart |
//! | [`watch`], [`reply`] | what a passing answer says, and its reply's keys |
//! | [`claim`] | bounds on what an answer may claim |
//! | [`mend`] | the last event of a stream that broke off |
//! | [`error`], [`names`] | errors as each API writes them; bounds on foreign names |

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
