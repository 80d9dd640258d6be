//! What the router knows: which prefixes live on which worker ([`knowledge`]), what answers teach of costs, conversations
//! and the tail ([`feedback`]), and how both are written down over a restart ([`format`]).

pub mod feedback;
pub mod format;
pub mod knowledge;
