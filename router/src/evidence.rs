//! What workers say of their caches, read off the wire.
//!
//! [`wire`] decodes a batch of events; [`source`] finds out where a worker publishes them; [`follow`] keeps up with one
//! worker's stream: in order, with what was lost asked for again, and forgotten where it is lost for good. What the
//! events mean is [`policy::evidence`]'s business.

pub mod follow;
pub mod source;
pub mod wire;
pub mod zmtp;
