//! Estimators fed by observed requests. Each is a value with `observe`-like methods that take `now`; none owns a clock.

mod classes;
mod conversations;
mod doubt;
mod homes;
mod media_tokens;
mod overhead;
mod pending;
mod prefill_cost;
mod slowness;
mod tokens_per_byte;
mod utilisation;

pub use classes::{Class, Finish, HabitTable, KeptHabits, Stage};
pub use conversations::{Habits, Mean};
pub use doubt::Doubt;
pub use homes::{ConversationCounts, LastTurn};
pub use media_tokens::MediaTokens;
pub use overhead::Overhead;
pub use pending::{PendingWork, QueueFigure, Reconciled, Ticket};
pub use prefill_cost::{LearnedCost, PrefillSize, pooled};
pub use slowness::{Against, Past, Reading, Slow, Slowness, slowed_share};
pub use tokens_per_byte::TokensPerByte;
pub use utilisation::Utilisation;
