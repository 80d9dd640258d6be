//! The file of a measurement's samples: one JSON line for the measurement ([`Head`]), then one per sample, each written
//! before the next one begins, so that after any interruption they can be fitted, or continued with `--resume`. The
//! file is called `….part` until it is complete, so that a new attempt does not destroy an older complete file.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::Grid;
use crate::sample::{Cell, Facts, Sample};

mod error;
mod path;
#[cfg(test)]
mod tests;

pub use error::RecordError;
use error::io_error;
pub use path::{beside, replace};

/// Version of the file format. Raised when old readers would misread a new file.
pub const VERSION: u32 = 1;

const LARGEST_FILE_BYTES: u64 = 256 << 20;

/// The first line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the file format: [`VERSION`].
    pub version: u32,
    /// URL of the worker, or the command that measures.
    pub place: String,
    /// Known facts about the worker.
    pub facts: Facts,
    /// The grid to measure.
    pub grid: Grid,
    /// Start time, in seconds since 1970.
    pub began_at_unix_s: u64,
}

/// A sample and its cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The requested cell.
    pub cell: Cell,
    /// The measured sample.
    pub sample: Sample,
}

/// Samples kept in a file.
#[derive(Debug)]
pub struct Record {
    head: Head,
    samples: Vec<Measured>,
    done: HashSet<Cell>,
    file: File,
    part: PathBuf,
    whole: PathBuf,
}

/// The treatment of an existing unfinished measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Fail if the measurement has samples, so that hours of measuring are not lost by repeating a command.
    Keep,
    /// Continue the measurement.
    Resume,
    /// Discard the measurement's samples.
    Discard,
}

impl Record {
    /// Creates a file of samples beside `out`, or continues an unfinished one, and locks it. Fails on an I/O error, if
    /// another process uses it, or if an unfinished measurement is a different one or must be kept.
    pub fn open(out: &Path, head: Head, unfinished: Unfinished) -> Result<Self, RecordError> {
        let (whole, part) = paths(out);
        let file = locked(&part)?;
        let length = file
            .metadata()
            .map_err(|source| io_error(&part, "read", source))?
            .len();
        let mut record = Self {
            head,
            samples: Vec::new(),
            done: HashSet::new(),
            file,
            part,
            whole,
        };
        match unfinished {
            Unfinished::Resume if length > 0 => record.go_on()?,
            Unfinished::Keep if length > 0 => record.refuse_if_any()?,
            _ => record.start()?,
        }
        Ok(record)
    }

    fn start(&mut self) -> Result<(), RecordError> {
        self.cut(0)?;
        let head = self.head.clone();
        self.write(&head)
    }

    fn refuse_if_any(&mut self) -> Result<(), RecordError> {
        let (_, samples, _) = parse(&self.part)?;
        if samples.is_empty() {
            return self.start();
        }
        Err(RecordError::Unfinished {
            path: self.part.clone(),
            samples: samples.len(),
        })
    }

    fn go_on(&mut self) -> Result<(), RecordError> {
        let (found, samples, intact) = parse(&self.part)?;
        let differs = [
            ("worker", found.place != self.head.place),
            ("model", found.facts.model != self.head.facts.model),
            ("grid or seed", found.grid != self.head.grid),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            let path = self.part.clone();
            return Err(RecordError::Another { path, what });
        }
        // A truncated last line would corrupt the next one.
        self.cut(intact)?;
        self.done = samples.iter().map(|measured| measured.cell).collect();
        (self.head, self.samples) = (found, samples);
        Ok(())
    }

    fn cut(&mut self, length: u64) -> Result<(), RecordError> {
        let cut = self.file.set_len(length);
        cut.map_err(|source| io_error(&self.part, "written", source))
    }

    /// Returns the description of the measurement.
    pub fn head(&self) -> &Head {
        &self.head
    }

    pub fn samples(&self) -> &[Measured] {
        &self.samples
    }

    /// Returns whether a cell has been measured.
    pub fn has(&self, cell: &Cell) -> bool {
        self.done.contains(cell)
    }

    /// Returns the path of the unfinished file.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Writes a sample. Fails if it cannot be written, or has another clock than the earlier ones.
    pub fn add(&mut self, measured: Measured) -> Result<(), RecordError> {
        let first = self.samples.first().map(|first| first.sample.clock);
        if first.is_some_and(|clock| clock != measured.sample.clock) {
            let (path, what) = (
                self.part.clone(),
                "clock: see --own-clock, and what the engine tells",
            );
            return Err(RecordError::Another { path, what });
        }
        self.write(&measured)?;
        self.done.insert(measured.cell);
        self.samples.push(measured);
        Ok(())
    }

    /// Renames the file of a complete measurement, and returns the new path. Fails if it cannot be renamed.
    pub fn complete(self) -> Result<PathBuf, RecordError> {
        let whole = self.whole.clone();
        self.becomes(whole)
    }

    /// Renames the file of a measurement without a reliable fit. Returns the new path. Fails if it cannot be renamed.
    pub fn set_aside(self, out: &Path) -> Result<PathBuf, RecordError> {
        self.becomes(beside(out, "samples.refused.jsonl"))
    }

    fn becomes(self, path: PathBuf) -> Result<PathBuf, RecordError> {
        self.file
            .sync_all()
            .map_err(|source| io_error(&self.part, "written", source))?;
        fs::rename(&self.part, &path).map_err(|source| io_error(&path, "written", source))?;
        Ok(path)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), RecordError> {
        let text = serde_json::to_string(line)
            .map(|text| text + "\n")
            .map_err(io::Error::from);
        let written = text.and_then(|text| self.file.write_all(text.as_bytes()));
        written.map_err(|source| io_error(&self.part, "written", source))
    }
}

/// Returns the paths of the samples beside the calibration `out`: the complete and the unfinished file.
pub fn paths(out: &Path) -> (PathBuf, PathBuf) {
    (beside(out, "samples.jsonl"), beside(out, "samples.jsonl.part"))
}

/// Opens the file for appending and locks it until it is closed.
fn locked(path: &Path) -> Result<File, RecordError> {
    let opened = File::options().read(true).append(true).create(true).open(path);
    let file = opened.map_err(|source| io_error(path, "written", source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RecordError::InUse {
            path: path.to_owned(),
        }),
        // Some file systems do not support locks.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(source)) => Err(io_error(path, "locked", source)),
    }
}

/// Reads a file of samples, without a truncated last line. Fails if it cannot be read, or is not such a file.
pub fn read(path: &Path) -> Result<(Head, Vec<Measured>), RecordError> {
    let (head, samples, _) = parse(path)?;
    Ok((head, samples))
}

/// Parses the file. Also returns the length in bytes of the file's complete lines.
fn parse(path: &Path) -> Result<(Head, Vec<Measured>, u64), RecordError> {
    let unreadable = |source| io_error(path, "read", source);
    let mut lines = BufReader::new(File::open(path).map_err(unreadable)?.take(LARGEST_FILE_BYTES));
    let foreign = |line, expected| {
        move |source| RecordError::Line {
            path: path.to_owned(),
            line,
            expected,
            source,
        }
    };
    let mut line = String::new();
    let mut intact = lines.read_line(&mut line).map_err(unreadable)? as u64;
    let head: Head = serde_json::from_str(&line).map_err(foreign(1, "the head of a measurement"))?;
    if head.version != VERSION {
        return Err(RecordError::Version {
            path: path.to_owned(),
            found: head.version,
        });
    }
    let mut samples = Vec::new();
    for number in 2.. {
        line.clear();
        let length = lines.read_line(&mut line).map_err(unreadable)?;
        if !line.ends_with('\n') {
            break;
        }
        samples.push(serde_json::from_str(&line).map_err(foreign(number, "a sample"))?);
        intact += length as u64;
    }
    Ok((head, samples, intact))
}
