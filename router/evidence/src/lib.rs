//! Cache events from the workers.
//!
//! [`follow`] follows one worker's stream, which [`source`] finds; [`wire`] decodes it for [`policy::evidence`].

pub mod follow;
pub mod source;
pub mod wire;
pub mod zmtp;
