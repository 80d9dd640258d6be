//! The calibration file: the fit of one worker, with the measurement it comes from.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fit::Fit;
use crate::plan::Grid;
use crate::sample::{Clock, Facts};

/// Version of the file format. Raised when old readers would misread a new file.
pub const VERSION: u32 = 1;

/// Longest file that is read; a calibration takes two kilobytes.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// The calibration of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the file format: [`VERSION`].
    pub version: u32,
    /// The worker's base URL, or the command that measured.
    pub worker: String,
    /// The model that was measured.
    pub model: String,
    /// Time of the measurement, in seconds since 1970.
    pub measured_at_unix_s: u64,
    /// The program that wrote the file.
    pub bench: String,
    /// Known facts about the worker: engine, device, driver, cache.
    pub facts: Facts,
    /// The grid that was measured.
    pub grid: Grid,
    /// Passes over the grid that were started.
    pub passes: u32,
    /// The clock of the times.
    pub clock: Clock,
    /// Why the measurement ended.
    pub ended: Ended,
    /// The measured range. Outside it the fit is an extrapolation.
    pub range: Range,
    /// The fitted α, β, γ and their quality.
    pub fit: Fit,
    /// The largest share of the roofline that a prompt reached, if the roofline is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_roofline_share: Option<f64>,
    /// Probes that failed.
    pub failed_probes: u32,
    /// Probes whose history was only partly cached. They count with the tokens that were cached.
    pub partly_cached_probes: u32,
}

/// Why a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// The intervals reached the requested precision.
    Precise,
    /// All passes were made.
    Passes,
    /// The time budget was used up.
    Budget,
    /// The worker had other work.
    Busy,
    /// The user interrupted the measurement.
    Interrupted,
}

/// The smallest and the largest values measured, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Cached tokens.
    pub history: (u64, u64),
    /// Uncached tokens.
    pub uncached: (u64, u64),
}

/// Why a calibration file cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// An I/O error.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is not a calibration.
    #[error("{} is not a calibration file", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The file has another version.
    #[error("{} has version {found}, expected {VERSION}", path.display())]
    Version {
        path: PathBuf,
        /// The file's version.
        found: u32,
    },
}

impl Calibration {
    /// Reads a calibration file. Fails if it cannot be read, or is not a calibration of this version.
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
