//! What the router learns: cached prefixes ([`knowledge`]), costs, conversations ([`feedback`]), and their
//! [`mod@format`].

pub mod feedback;
pub mod format;
pub mod knowledge;
