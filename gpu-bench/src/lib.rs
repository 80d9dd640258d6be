//! What a prompt token costs on a worker.
//!
//! A router can only choose well if it knows what a miss costs: `ttft = wait + β + α·u + γ·u·(h + u/2)`, `u` uncached
//! and `h` cached prompt tokens. This crate measures α, β, γ of one worker through the very interface that its users
//! have, and refuses to report numbers that do not hold.
//!
//! How: a [`grid`] of (h, u), each cell probed several times, whole passes in random order, so that a drift of the
//! machine spreads over all cells instead of bending one of them. Before a probe with history its prefix is *primed*
//! by a request of its own; the new part is unique, so that nothing else of it is cached. A [`probe`] is one streamed
//! chat completion; `u` and `h` are what the worker's `usage` says, not what was intended. The [`fit`] is robust
//! least squares with bootstrap intervals. What comes out is a [`calibration`] file.
//!
//! What was rejected: a straight line in `u` (it explained 65 % of the variance where the cross term explained 99 %),
//! scraping the engine's own histograms (they include other people's traffic), and counting tokens by a tokenizer
//! (the worker already does).

pub mod calibration;
pub mod fit;
pub mod grid;
pub mod probe;
pub mod report;
pub mod worker;
