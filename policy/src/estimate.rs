//! What is learned from what happened: predicted wait, utilisation, tokens per byte.
//!
//! Each estimator is a value with `observe`-like methods that take `now`; none owns a clock.

mod pending;
mod tokens_per_byte;
mod utilisation;

pub use pending::{PendingWork, Ticket};
pub use tokens_per_byte::TokensPerByte;
pub use utilisation::Utilisation;
