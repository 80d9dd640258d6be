//! Sources of samples: a worker behind HTTP, or a process that measures on the machine's own accelerator. The plan, the
//! record, the fit and the reports depend only on [`Source`].

pub mod child;
pub mod http;

use std::time::Duration;

use thiserror::Error;

use crate::sample::{Cell, Facts, Sample};

/// A worker whose prefills can be timed.
pub trait Source {
    /// Returns the worker's URL, or the command that measures.
    fn place(&self) -> &str;

    /// Returns the known facts about the worker.
    fn facts(&self) -> &Facts;

    /// Measures one cell. The sample has measured, not requested, counts. A dropped future yields no sample.
    fn measure(&mut self, cell: Cell) -> impl Future<Output = Result<Sample, SourceError>>;
}

/// Why a cell was not measured.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A probe failed. Later cells may succeed.
    #[error(transparent)]
    Probe(#[from] http::ProbeError),
    /// The worker had other work for the whole waiting time.
    #[error("the worker still had other work after {} s; measure it when it is idle, or without --polite", .0.as_secs())]
    Busy(Duration),
    /// The measuring process failed permanently.
    #[error(transparent)]
    Child(#[from] child::ChildError),
}

impl SourceError {
    /// Returns whether further cells would fail too.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Probe(error) => error.is_final(),
            Self::Busy(_) | Self::Child(_) => true,
        }
    }
}
