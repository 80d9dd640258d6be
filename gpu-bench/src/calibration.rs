//! The calibration file: what was measured, on what, when, and how far it can be trusted.
//!
//! Written whole or not at all: into a file beside it that then takes its name, so that neither a crash nor a full
//! disk leaves half a calibration, and a measurement that fails leaves the last good one where it is.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fit::Fit;

/// Version of the file's format: raised when a reader of the old one would misread the new one.
pub const VERSION: u32 = 1;

/// A measured worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`VERSION`].
    pub version: u32,
    /// The worker's base url.
    pub worker: String,
    /// The model that was measured.
    pub model: String,
    /// When, in seconds since 1970.
    pub measured_at_unix_s: u64,
    /// α, β, γ and how well they hold.
    pub fit: Fit,
    /// Where they were measured. Beyond it they are a guess.
    pub range: Range,
    /// Probes that failed.
    pub failed_probes: u32,
    /// Probes whose history was not all in the cache. They count with the history that they had.
    pub partly_cached_probes: u32,
    /// Seed of order, text and resamples.
    pub seed: u64,
}

/// Smallest and largest of what was measured, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Cached tokens.
    pub history: (u64, u64),
    /// Uncached tokens.
    pub uncached: (u64, u64),
}

/// Why a calibration could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// It could not be put into JSON.
    #[error("the calibration is no JSON")]
    Json(#[from] serde_json::Error),
    /// The system refused.
    #[error("{}: cannot be written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Calibration {
    /// Writes the file, replacing an older one in one step.
    ///
    /// # Errors
    /// If it cannot be written; an older one then stays as it was.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let beside = path.with_file_name(name);
        replace(&beside, path, text.as_bytes()).map_err(|source| {
            let _ = fs::remove_file(&beside);
            WriteError::Io {
                path: path.to_owned(),
                source,
            }
        })
    }
}

fn replace(beside: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(beside, path)
}

#[cfg(test)]
pub(crate) mod tests {
    use policy::cost::PrefillCost;

    use super::*;
    use crate::fit::Interval;

    pub(crate) fn example() -> Calibration {
        let interval = Interval { low: 0.0, high: 1.0 };
        let fit = Fit {
            cost: PrefillCost::linear(0.1, 20.0),
            alpha: interval,
            beta: interval,
            gamma: interval,
            r_squared: 0.99,
            outlier_share: 0.0,
            relative_error_p50: 0.01,
            relative_error_p95: 0.05,
            samples: 100,
        };
        Calibration {
            version: VERSION,
            worker: "http://h:1".to_owned(),
            model: "m".to_owned(),
            measured_at_unix_s: 1,
            fit,
            range: Range {
                history: (0, 4096),
                uncached: (64, 4096),
            },
            failed_probes: 0,
            partly_cached_probes: 0,
            seed: 1,
        }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        fs::write(&path, "an older one").unwrap();
        example().write(&path).unwrap();
        let read: Calibration = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read, example());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = example().write(Path::new("/nowhere/c.json")).unwrap_err();
        assert_eq!(error.to_string(), "/nowhere/c.json: cannot be written");
    }
}
