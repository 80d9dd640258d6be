//! Cache events from the workers.
//!
//! [`wire`] decodes a batch of events; [`source`] finds a worker's publisher; [`follow`] follows one worker's
//! stream in order, requests lost batches again, and drops the state after a permanent loss. [`policy::evidence`]
//! interprets the events.

pub mod follow;
pub mod source;
pub mod wire;
pub mod zmtp;
