//! What a prompt token costs on a worker.
//!
//! A router can only choose well if it knows what a miss costs: `ttft = wait + β + α·u + γ·u·(h + u/2)`, `u` uncached
//! and `h` cached prompt tokens. This crate measures α, β, γ of one worker, and refuses to report numbers that do not
//! hold.
//!
//! How: [`sample`]s come from a [`source`] (a worker behind HTTP, a process on the machine's accelerator), cell by cell
//! of a [`plan`] (a grid of (h, u), in random order, repeated until it is enough); [`measure`] drives one by the other and
//! keeps what was measured in a [`record`]; the [`fit`] is robust least squares with bootstrap intervals; what comes out
//! is a [`calibration`] file and a [`report`]. [`cmd`] is the command line.
//!
//! What was rejected: a straight line in `u` (it explained 65 % of the variance where the cross term explained 99 %),
//! scraping the engine's own histograms (they include other people's traffic), and counting tokens by a tokenizer
//! (the worker already does).

pub mod calibration;
pub mod cmd;
pub mod fit;
pub mod measure;
pub mod plan;
pub mod record;
pub mod report;
pub mod sample;
pub mod source;
