//! What workers say of their caches, read off the wire.
//!
//! [`wire`] decodes a batch of events; what they mean is [`policy::evidence`]'s business.

pub mod wire;
