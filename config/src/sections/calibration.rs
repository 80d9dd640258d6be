//! A worker's cost as measured by `gpu-bench`, which refuses to write an invalid fit. Only version and fit are read.

use std::path::{Path, PathBuf};

use policy::cost::PrefillCost;
use serde::Deserialize;

const VERSION: u32 = 1;
/// Length of the longest file that is read; a calibration has about a kilobyte.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct Calibration {
    version: u32,
    fit: Fit,
}

#[derive(Deserialize)]
struct Fit {
    cost: PrefillCost,
    /// Time that every prompt takes at least, if one was measured.
    floor: Option<Floor>,
}

#[derive(Deserialize)]
struct Floor {
    ms: f64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CalibrationError {
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not a calibration file: {source}", path.display())]
    Foreign {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} has version {found}, expected {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("{} has no usable cost: alpha must be above 0, beta, gamma and the floor at least 0", path.display())]
    Unphysical { path: PathBuf },
}

pub(crate) fn read(path: &Path) -> Result<PrefillCost, CalibrationError> {
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
