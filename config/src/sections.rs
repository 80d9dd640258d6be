//! The sections of the configuration, one file each.
//!
//! A key is a field of its section, with its bounds (`schemars`), its default, and a doc comment for operators, which
//! is its description in the schema and in docs/configuration.md. A section is one struct, whose fields have the types
//! that the router uses ([`as_written`] says how they are written). If one of them has texts to parse, its type is a
//! parameter: `Server<String>` is the section as written, and `Server` as checked. A section whose checked form has
//! another shape is two structs, the first of which is `…Section`. Times that feed the policies are `Millis`; times that
//! bound sockets are `Duration`, as tokio takes them.
//!
//! The schema checks ranges first; `checked` checks texts, and values that must agree with each other. For an invalid
//! value a default is used while the check continues. A configuration with problems is never returned.

pub(crate) mod admin;
pub(crate) mod admission;
pub(crate) mod as_written;
pub(crate) mod base_url;
pub(crate) mod calibration;
pub(crate) mod checker;
pub(crate) mod discovery;
pub(crate) mod endpoint_picker;
pub(crate) mod engine;
pub(crate) mod failure;
pub(crate) mod fleet;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod index;
pub(crate) mod keys;
pub(crate) mod learning;
pub(crate) mod limits;
pub(crate) mod objective;
pub(crate) mod output;
pub(crate) mod own_ports;
pub(crate) mod routing;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod traces;
pub(crate) mod worker;
