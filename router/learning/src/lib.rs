//! What the router learns: the prefixes that each worker holds ([`knowledge`]), costs, conversations and the value of
//! their ends from responses ([`feedback`]), and the format that persists both over a restart ([`format`]).

pub mod feedback;
pub mod format;
pub mod knowledge;
