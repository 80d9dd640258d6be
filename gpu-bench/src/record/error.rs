use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::VERSION;

/// Why samples cannot be written or read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// An I/O error.
    #[error("{}: cannot be {done}", path.display())]
    Io {
        path: PathBuf,
        /// The attempted operation, as a participle.
        done: &'static str,
        source: io::Error,
    },
    /// A line does not parse.
    #[error("{}, line {line}: expected {expected}", path.display())]
    Line {
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The expected content.
        expected: &'static str,
        source: serde_json::Error,
    },
    /// The file has another version.
    #[error("{} has version {found}, expected {VERSION}", path.display())]
    Version {
        path: PathBuf,
        /// The file's version.
        found: u32,
    },
    /// The file has samples of an unfinished measurement.
    #[error(
        "{} holds {samples} samples of an unfinished measurement; --resume continues it, --restart discards them",
        path.display()
    )]
    Unfinished {
        path: PathBuf,
        /// Number of samples in the file.
        samples: usize,
    },
    /// Another process writes to the file.
    #[error("{}: another gpu-bench writes to this file; use another --out", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file belongs to another measurement.
    #[error("{} is of another {what}; use --restart instead of --resume", path.display())]
    Another {
        path: PathBuf,
        /// The field that differs.
        what: &'static str,
    },
}

pub(super) fn io_error(path: &Path, done: &'static str, source: io::Error) -> RecordError {
    RecordError::Io {
        path: path.to_owned(),
        done,
        source,
    }
}
