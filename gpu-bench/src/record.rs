//! The file of a measurement's samples, written as they are made.
//!
//! The file has one JSON line for the measurement ([`Head`]), then one per sample, each written before the next one
//! begins. After any interruption, the samples can be fitted, or continued with `--resume`. During the measurement the
//! file is called `….part`; it is renamed when complete, so that a new attempt does not destroy an older complete file.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::Grid;
use crate::sample::{Cell, Facts, Sample};

/// Version of the file format. Raised when old readers would misread a new file.
pub const VERSION: u32 = 1;

/// Longest file that is read.
const LARGEST_FILE_BYTES: u64 = 256 << 20;

/// The first line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`VERSION`].
    pub version: u32,
    /// URL of the worker, or the command that measures.
    pub place: String,
    /// Known facts about it.
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

/// Why samples cannot be written or read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// An I/O error.
    #[error("{}: cannot be {done}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted operation.
        done: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A line does not parse.
    #[error("{}, line {line}: expected {expected}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What it should contain.
        expected: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file has another version.
    #[error("{} has version {found}, expected {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file has samples of an unfinished measurement.
    #[error(
        "{} holds {samples} samples of an unfinished measurement; --resume continues it, --restart discards them",
        path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// Their number.
        samples: usize,
    },
    /// Another process writes to the file.
    #[error("{}: another gpu-bench writes to this file; use another --out", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file belongs to another measurement.
    #[error("{} is of another {what}; use --restart instead of --resume", path.display())]
    Another {
        /// The file.
        path: PathBuf,
        /// The field that differs.
        what: &'static str,
    },
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

/// How to treat an existing unfinished measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Fail, so that hours of measuring are not lost by repeating a command.
    Keep,
    /// Continue it.
    Resume,
    /// Discard its samples.
    Discard,
}

impl Record {
    /// Creates a file of samples beside `out`, or continues an unfinished one. Locks the file against other processes.
    ///
    /// # Errors
    /// If the file cannot be read or written, another process uses it, or an unfinished measurement is a different one
    /// or must be kept.
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

    /// Truncates the file and writes the head.
    fn start(&mut self) -> Result<(), RecordError> {
        self.cut(0)?;
        let head = self.head.clone();
        self.write(&head)
    }

    /// Fails if the file has samples.
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
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the samples.
    #[must_use]
    pub fn samples(&self) -> &[Measured] {
        &self.samples
    }

    /// Returns whether a cell has been measured.
    #[must_use]
    pub fn has(&self, cell: &Cell) -> bool {
        self.done.contains(cell)
    }

    /// Returns the path of the unfinished file.
    #[must_use]
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Writes a sample.
    ///
    /// # Errors
    /// If it cannot be written, or has another clock than the earlier ones.
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

    /// Renames the file of a complete measurement. Returns the new path.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn complete(self) -> Result<PathBuf, RecordError> {
        let whole = self.whole.clone();
        self.becomes(whole)
    }

    /// Renames the file of a finished measurement without a reliable fit, out of the way of later measurements.
    /// Returns the new path.
    ///
    /// # Errors
    /// If it cannot be renamed.
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
#[must_use]
pub fn paths(out: &Path) -> (PathBuf, PathBuf) {
    (beside(out, "samples.jsonl"), beside(out, "samples.jsonl.part"))
}

/// Replaces the extension `.json`: `worker.json` → `worker.samples.jsonl`. Other names are extended:
/// `worker-10.0.0.1` → `worker-10.0.0.1.samples.jsonl`.
#[must_use]
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

/// Reads a file of samples. A truncated last line is ignored.
///
/// # Errors
/// If it cannot be read, or is not such a file.
pub fn read(path: &Path) -> Result<(Head, Vec<Measured>), RecordError> {
    let (head, samples, _) = parse(path)?;
    Ok((head, samples))
}

/// Parses the file. Also returns the length in bytes of its complete lines.
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

fn io_error(path: &Path, done: &'static str, source: io::Error) -> RecordError {
    RecordError::Io {
        path: path.to_owned(),
        done,
        source,
    }
}

/// Writes `bytes` to `path` atomically, through a temporary file and a rename. Neither a crash nor a full disk leaves
/// a partial file.
///
/// # Errors
/// If an I/O operation fails; an older file is then unchanged.
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

#[cfg(test)]
mod tests {
    use policy::units::{Millis, Tokens};

    use super::*;
    use crate::sample::Clock;

    fn head() -> Head {
        Head {
            version: VERSION,
            place: "http://h:1".to_owned(),
            facts: Facts {
                model: "m".to_owned(),
                ..Facts::default()
            },
            grid: Grid {
                cached_tokens: vec![0],
                uncached_tokens: vec![8, 16],
                seed: 1,
            },
            began_at_unix_s: 1,
        }
    }

    fn measured(uncached: u64) -> Measured {
        Measured {
            cell: Cell {
                cached_tokens: 0,
                uncached_tokens: uncached,
                pass: 0,
            },
            sample: Sample {
                cached: Tokens(0),
                uncached: Tokens(uncached),
                prefill: Millis(1.5),
                clock: Clock::Client,
                flops: None,
                bytes: None,
            },
        }
    }

    #[test]
    fn an_interrupted_measurement_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("gpu-0.json");
        let mut record = Record::open(&out, head(), Unfinished::Keep).unwrap();
        record.add(measured(8)).unwrap();
        let part = record.part().to_owned();
        drop(record);
        // Simulates a process killed in the middle of a line.
        let cut = fs::read_to_string(&part).unwrap() + "{\"cell\":{\"cached_to";
        fs::write(&part, cut).unwrap();
        let mut record = Record::open(&out, head(), Unfinished::Resume).unwrap();
        assert!(record.has(&measured(8).cell) && !record.has(&measured(16).cell));
        record.add(measured(16)).unwrap();
        let whole = record.complete().unwrap();
        assert_eq!(whole, folder.path().join("gpu-0.samples.jsonl"));
        assert_eq!(read(&whole).unwrap(), (head(), vec![measured(8), measured(16)]));
        assert!(!part.exists());
    }

    #[test]
    fn repeating_a_command_does_not_discard_an_unfinished_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("gpu-0.json");
        // A file without samples may be replaced.
        drop(Record::open(&out, head(), Unfinished::Keep).unwrap());
        let mut record = Record::open(&out, head(), Unfinished::Keep).unwrap();
        record.add(measured(8)).unwrap();
        let part = record.part().to_owned();
        drop(record);
        let error = Record::open(&out, head(), Unfinished::Keep)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("holds 1 samples") && error.contains("--resume"),
            "{error}"
        );
        assert_eq!(read(&part).unwrap().1, [measured(8)]);
        let record = Record::open(&out, head(), Unfinished::Discard).unwrap();
        assert!(record.samples().is_empty() && read(&part).unwrap().1.is_empty());
    }

    #[test]
    fn two_measurements_do_not_write_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("gpu-0.json");
        let mut first = Record::open(&out, head(), Unfinished::Keep).unwrap();
        first.add(measured(8)).unwrap();
        for unfinished in [Unfinished::Keep, Unfinished::Resume, Unfinished::Discard] {
            let error = Record::open(&out, head(), unfinished).unwrap_err().to_string();
            assert!(error.contains("another gpu-bench"), "{error}");
        }
        assert_eq!(read(first.part()).unwrap().1, [measured(8)]);
        drop(first);
        assert_eq!(
            Record::open(&out, head(), Unfinished::Resume).unwrap().samples(),
            [measured(8)]
        );
    }

    #[test]
    fn samples_of_two_clocks_are_not_mixed() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::open(&folder.path().join("gpu-0.json"), head(), Unfinished::Keep).unwrap();
        record.add(measured(8)).unwrap();
        let mut other = measured(16);
        other.sample.clock = Clock::Engine;
        let error = record.add(other).unwrap_err().to_string();
        assert!(error.contains("clock"), "{error}");
        assert_eq!(record.samples(), [measured(8)]);
    }

    #[test]
    fn files_of_different_names_are_different_files() {
        let samples = |out: &str| paths(Path::new(out)).0.display().to_string();
        assert_eq!(samples("a/gpu-0.json"), "a/gpu-0.samples.jsonl");
        assert_eq!(samples("worker-10.0.0.1"), "worker-10.0.0.1.samples.jsonl");
        assert_ne!(samples("worker-10.0.0.1"), samples("worker-10.0.0.2"));
    }

    #[test]
    fn another_measurement_is_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("gpu-0.json");
        drop(Record::open(&out, head(), Unfinished::Keep).unwrap());
        let other = Head {
            grid: Grid {
                seed: 2,
                ..head().grid
            },
            ..head()
        };
        let error = Record::open(&out, other, Unfinished::Resume)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("another grid or seed; use --restart instead of --resume"),
            "{error}"
        );
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.jsonl");
        let first = serde_json::to_string(&head()).unwrap();
        fs::write(&path, format!("{first}\n{{\"cell\": 1}}\n")).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with("line 2: expected a sample"), "{error}");
    }

    #[test]
    fn a_file_is_replaced_atomically_without_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        fs::write(&path, "an older one").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = replace(Path::new("/nowhere/c.json"), b"").unwrap_err();
        assert_eq!(error.to_string(), "/nowhere/c.json: cannot be written");
    }
}
