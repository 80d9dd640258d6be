//! A worker's cost as `gpu-bench` measured it.
//!
//! Of the file only what the router needs is read: the version, and the fit's coefficients. A fit that does not hold was
//! never written: `gpu-bench` refuses to.

use std::path::{Path, PathBuf};

use policy::cost::PrefillCost;
use serde::Deserialize;

/// The version of the file's format that is understood.
const VERSION: u32 = 1;
/// Longest file that is read; a calibration is a kilobyte.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct Calibration {
    version: u32,
    fit: Fit,
}

#[derive(Deserialize)]
struct Fit {
    cost: PrefillCost,
    /// What short prompts all take, where there is such a time.
    floor: Option<Floor>,
}

#[derive(Deserialize)]
struct Floor {
    ms: f64,
}

/// Why a calibration is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum CalibrationError {
    /// It could not be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// It is something else.
    #[error("{} is no calibration: {source}", path.display())]
    Foreign {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// It was written by another version.
    #[error("{} has version {found}, expected {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    /// What it says cannot be.
    #[error("{} has no usable cost: alpha must be above 0, beta, gamma and the floor at least 0", path.display())]
    Unphysical { path: PathBuf },
}

/// Reads α, β, γ and the floor.
pub(super) fn read(path: &Path) -> Result<PrefillCost, CalibrationError> {
    let unreadable = |source| CalibrationError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let text = crate::file::read(path, LONGEST_FILE_BYTES).map_err(unreadable)?;
    let Calibration { version, fit } =
        serde_json::from_slice(&text).map_err(|source| CalibrationError::Foreign {
            path: path.to_owned(),
            source,
        })?;
    if version != VERSION {
        return Err(CalibrationError::Version {
            path: path.to_owned(),
            found: version,
        });
    }
    let cost = PrefillCost {
        floor_ms: fit.floor.map_or(0.0, |floor| floor.ms),
        ..fit.cost
    };
    let sane = |value: f64| value.is_finite() && value >= 0.0;
    let physical = sane(cost.alpha_ms_per_token) && cost.alpha_ms_per_token > 0.0;
    if !(physical && sane(cost.beta_ms) && sane(cost.gamma_ms_per_token2) && sane(cost.floor_ms)) {
        return Err(CalibrationError::Unphysical {
            path: path.to_owned(),
        });
    }
    Ok(cost)
}
