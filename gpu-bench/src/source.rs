//! Where samples come from.
//!
//! The plan, the record, the fit and the reports know only this trait: a worker behind HTTP is one source, a process
//! that measures on the machine's own accelerator is another.

pub mod child;
pub mod http;

use std::time::Duration;

use thiserror::Error;

use crate::sample::{Cell, Facts, Sample};

/// Something whose prefill can be timed.
pub trait Source {
    /// Where it is: a url, or a command.
    fn place(&self) -> &str;

    /// What is known of it.
    fn facts(&self) -> &Facts;

    /// Measures one cell. What it counts may differ from what was asked for; the sample says what was counted.
    ///
    /// It may be dropped before it is done: then nothing has been measured.
    fn measure(&mut self, cell: Cell) -> impl Future<Output = Result<Sample, SourceError>>;
}

/// Why a cell was not measured.
#[derive(Debug, Error)]
pub enum SourceError {
    /// This once; the next cell may fare better.
    #[error(transparent)]
    Probe(#[from] http::ProbeError),
    /// The worker has other work, and was left alone for as long as there was.
    #[error("the worker had other work, also after {} s; measure it when it is idle, or without --polite", .0.as_secs())]
    Busy(Duration),
    /// The process that measures is of no use any more.
    #[error(transparent)]
    Child(#[from] child::ChildError),
}

impl SourceError {
    /// Whether there is no point in asking for another cell.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Probe(error) => error.is_final(),
            Self::Busy(_) | Self::Child(_) => true,
        }
    }
}
