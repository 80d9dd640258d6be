//! The calibration file: what was measured, on what, when, how, and how far it can be trusted.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fit::Fit;
use crate::plan::Grid;
use crate::sample::{Clock, Facts};

/// Version of the file's format: raised when a reader of the old one would misread the new one.
pub const VERSION: u32 = 1;

/// Longest file that is read; a calibration is two kilobytes.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// A measured worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`VERSION`].
    pub version: u32,
    /// The worker's base url, or the command that measured.
    pub worker: String,
    /// The model that was measured.
    pub model: String,
    /// When, in seconds since 1970.
    pub measured_at_unix_s: u64,
    /// The program that wrote this.
    pub bench: String,
    /// Engine, device, driver, cache: what is known of what was measured.
    pub facts: Facts,
    /// What was asked for.
    pub grid: Grid,
    /// Passes over the grid that were begun.
    pub passes: u32,
    /// Whose clock the times are by.
    pub clock: Clock,
    /// Why no more was measured.
    pub ended: Ended,
    /// Where it was measured. Beyond that the fit is a guess.
    pub range: Range,
    /// α, β, γ and how well they hold.
    pub fit: Fit,
    /// The largest share of the roofline that a prompt reached, where the roofline is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_roofline_share: Option<f64>,
    /// Probes that failed.
    pub failed_probes: u32,
    /// Probes whose history was not all in the cache. They count with the history that they had.
    pub partly_cached_probes: u32,
}

/// Why a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// The intervals are as narrow as was asked for.
    Precise,
    /// All passes were made.
    Passes,
    /// The time was over.
    Budget,
    /// The worker had other work.
    Busy,
    /// Somebody stopped it.
    Interrupted,
}

/// Smallest and largest of what was measured, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Cached tokens.
    pub history: (u64, u64),
    /// Uncached tokens.
    pub uncached: (u64, u64),
}

/// Why a calibration cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The system refused.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{} is no calibration", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// It was written by another version.
    #[error("{} has version {found}, expected {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

impl Calibration {
    /// Reads a calibration file.
    ///
    /// # Errors
    /// If it cannot be read, or is something else.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LONGEST_FILE_BYTES).read_to_end(&mut text));
        read.map_err(|source| ReadError::Io {
            path: path.to_owned(),
            source,
        })?;
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let foreign = |source| ReadError::Foreign {
            path: path.to_owned(),
            source,
        };
        let Versioned { version } = serde_json::from_slice(&text).map_err(foreign)?;
        if version != VERSION {
            return Err(ReadError::Version {
                path: path.to_owned(),
                found: version,
            });
        }
        serde_json::from_slice(&text).map_err(foreign)
    }
}
