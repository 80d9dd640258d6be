//! What a worker keeps, and in which order it lets go.

pub mod prefix;
