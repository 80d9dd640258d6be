//! The capture's files: at most two of `max_bytes` each, each a complete trace.
//!
//! A full file, or one that exists at start, is renamed to `PATH.1` and replaces the previous one. A failed write is
//! undone, so that a full disk loses lines but not the file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::numbers::BLOCK_TOKENS;

/// The current file and its limit.
#[derive(Debug)]
pub struct Ring {
    path: PathBuf,
    max_bytes: u64,
    file: File,
    /// Length of the complete lines.
    length: u64,
    /// The last line with the fleet, which also begins every new file.
    fleet: Vec<u8>,
}

impl Ring {
    /// Creates a file at `path`; an existing one is renamed to `PATH.1`. Fails if it cannot be created.
    pub fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let file = begin(path)?;
        let mut ring = Self {
            path: path.to_owned(),
            max_bytes,
            file,
            length: 0,
            fleet: Vec::new(),
        };
        ring.append(&first_line())?;
        Ok(ring)
    }

    /// Writes complete lines. If it fails, none of their bytes remain.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.length + lines.len() as u64 > self.max_bytes {
            let file = begin(&self.path)?;
            (self.file, self.length) = (file, 0);
            let head = [&first_line()[..], &self.fleet].concat();
            self.append(&head)?;
        }
        self.append(lines)
    }

    /// Writes a line with the fleet, and keeps it for the next file.
    pub fn write_fleet(&mut self, line: Vec<u8>) -> io::Result<()> {
        let written = self.write(&line);
        self.fleet = line;
        written
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(lines);
        match written {
            Ok(()) => self.length += lines.len() as u64,
            Err(_) => {
                self.file.set_len(self.length)?;
                self.file.seek(SeekFrom::Start(self.length))?;
            }
        }
        written
    }
}

fn begin(path: &Path) -> io::Result<File> {
    config::file::expect_regular_or_none(path)?;
    let mut before = OsString::from(path);
    before.push(".1");
    match std::fs::rename(path, &before) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Version of the format. Version 2 has lines with the fleet.
const VERSION: u32 = 2;

/// Returns the file's metadata line. `simulator::trace` reads its first three fields.
pub(super) fn first_line() -> Vec<u8> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let meta = serde_json::json!({
        "capture": true,
        "version": VERSION,
        "bs": BLOCK_TOKENS,
        "source": concat!("tailroute ", env!("CARGO_PKG_VERSION")),
        "begun_unix_s": since.map_or(0, |since| since.as_secs()),
    });
    let mut line = serde_json::json!({ "meta": meta }).to_string().into_bytes();
    line.push(b'\n');
    line
}
