//! Measures the cost of a prompt token on a worker.
//!
//! A router needs the cost of a cache miss to choose well: `ttft = wait + β + α·u + γ·u·(h + u/2)`, with `u` uncached
//! and `h` cached prompt tokens. This crate measures α, β, γ of one worker and rejects unreliable results.
//!
//! [`sample`]s come from a [`source`] (a worker behind HTTP, or a process on the machine's accelerator), cell by cell
//! of a [`plan`] (a grid of (h, u), in random order, repeated until it is precise enough). [`measure`] runs the plan
//! and keeps the samples in a [`record`]. The [`fit`] is robust least squares with bootstrap intervals; its results
//! are a [`calibration`] file and a [`report`]. [`push`] sends the calibration to a router. [`cmd`] is the command line.
//!
//! Rejected: a straight line in `u` (it explained 65 % of the variance where the cross term explained 99 %), scraping
//! the engine's histograms (they include other traffic), and counting tokens with a tokenizer (the worker reports
//! them).

pub mod access;
pub mod calibration;
pub mod cmd;
pub mod fit;
pub mod measure;
pub mod plan;
pub mod push;
pub mod record;
pub mod report;
pub mod sample;
pub mod source;
