//! Files beside a calibration, and files that are replaced as a whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::error::{RecordError, io_error};

/// Returns the path beside `out` with this ending in place of `.json`: `a.json` → `a.samples.jsonl`. Other names are
/// extended: `a-1.0` → `a-1.0.samples.jsonl`.
pub fn beside(out: &Path, ending: &str) -> PathBuf {
    let json = out.extension().is_some_and(|extension| extension == "json");
    let mut name = if json {
        out.with_extension("")
    } else {
        out.to_owned()
    }
    .into_os_string();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Writes `bytes` to `path` through a temporary file and a rename: neither a crash nor a full disk leaves a partial
/// file. Fails if an I/O operation fails; an older file is then unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&beside);
        io_error(path, "written", source)
    })
}
