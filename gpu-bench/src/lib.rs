//! Measures the cost of a prompt token on a worker: α, β and γ of `ttft = wait + β + α·u + γ·u·(h + u/2)`, with `u`
//! uncached and `h` cached prompt tokens. Unreliable results are rejected.
//!
//! [`sample`]s come from a [`source`] (a worker behind HTTP, or a process on the machine's accelerator), cell by cell
//! of a [`plan`]. [`measure`] runs the plan and keeps the samples in a [`record`]. The [`fit`] is robust least squares
//! with bootstrap intervals; its results are a [`calibration`] file and a [`report`]. [`push`] sends the calibration to
//! a router. [`cmd`] is the command line.
//!
//! Rejected: a straight line in `u` (it explained 65 % of the variance, the cross term 99 %), the engine's histograms
//! (they include other traffic), and a tokenizer (the worker reports its tokens).

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
pub mod terminal;
