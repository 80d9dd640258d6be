//! The samples of a measurement, kept as they are made.
//!
//! One JSON line for what is measured and how ([`Head`]), then one for each sample, each written before the next is
//! begun: whatever ends the measurement, what was measured until then can be fitted, or continued with `--resume`. While
//! it is under way the file is called `….part`; it takes its name when it is complete, so that an older complete one is
//! not lost to a new attempt.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::Grid;
use crate::sample::{Cell, Facts, Sample};

/// Version of the file's format: raised when a reader of the old one would misread the new one.
pub const VERSION: u32 = 1;

/// Largest file that is read.
const LARGEST_FILE_BYTES: u64 = 256 << 20;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`VERSION`].
    pub version: u32,
    /// A url or a command.
    pub place: String,
    /// What is known of it.
    pub facts: Facts,
    /// What is measured.
    pub grid: Grid,
    /// When it began, in seconds since 1970.
    pub began_at_unix_s: u64,
}

/// A sample and the cell that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was asked for.
    pub cell: Cell,
    /// What was measured.
    pub sample: Sample,
}

/// Why samples cannot be kept or read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{}: cannot be {done}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        done: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A line is something else.
    #[error("{}, line {line}: expected {expected}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        line: usize,
        /// What it should be.
        expected: &'static str,
        /// Why it is not.
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
    /// It is another measurement's.
    #[error("{} is of another {what}; leave out --resume to begin anew", path.display())]
    Another {
        /// The file.
        path: PathBuf,
        /// In what it differs.
        what: &'static str,
    },
}

/// Samples that are kept in a file.
#[derive(Debug)]
pub struct Record {
    head: Head,
    samples: Vec<Measured>,
    done: HashSet<Cell>,
    file: File,
    part: PathBuf,
    whole: PathBuf,
}

impl Record {
    /// Begins a file of samples beside `out`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(out: &Path, head: Head) -> Result<Self, RecordError> {
        let (whole, part) = paths(out);
        let file = File::create(&part).map_err(|source| io_error(&part, "written", source))?;
        let mut record = Self {
            head,
            samples: Vec::new(),
            done: HashSet::new(),
            file,
            part,
            whole,
        };
        let head = record.head.clone();
        record.write(&head)?;
        Ok(record)
    }

    /// Continues an unfinished one, or begins one if there is none.
    ///
    /// # Errors
    /// If it cannot be read or written, or is of another measurement.
    pub fn resume(out: &Path, head: Head) -> Result<Self, RecordError> {
        let (whole, part) = paths(out);
        if !part.exists() {
            return Self::begin(out, head);
        }
        let (found, samples) = read(&part)?;
        let differs = [
            ("worker", found.place != head.place),
            ("model", found.facts.model != head.facts.model),
            ("grid or seed", found.grid != head.grid),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            return Err(RecordError::Another { path: part, what });
        }
        // Written anew beside it, so that a last line that was cut off does not spoil the next, and nothing is lost meanwhile.
        let mut text = Vec::new();
        let lines =
            std::iter::once(serde_json::to_string(&found)).chain(samples.iter().map(serde_json::to_string));
        for line in lines {
            let line = line.map_err(|error| io_error(&part, "written", error.into()))?;
            text.extend_from_slice(line.as_bytes());
            text.push(b'\n');
        }
        replace(&part, &text)?;
        let opened = File::options().append(true).open(&part);
        let file = opened.map_err(|source| io_error(&part, "written", source))?;
        let done = samples.iter().map(|measured| measured.cell).collect();
        Ok(Self {
            head: found,
            samples,
            done,
            file,
            part,
            whole,
        })
    }

    /// What is measured.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// What was measured.
    #[must_use]
    pub fn samples(&self) -> &[Measured] {
        &self.samples
    }

    /// Whether a cell has been measured.
    #[must_use]
    pub fn has(&self, cell: &Cell) -> bool {
        self.done.contains(cell)
    }

    /// Where it is while it is under way.
    #[must_use]
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Keeps a sample.
    ///
    /// # Errors
    /// If it cannot be written, or was taken by another clock than those before it.
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

    /// The measurement is complete: the file takes its name, which is returned.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn complete(self) -> Result<PathBuf, RecordError> {
        self.file
            .sync_all()
            .map_err(|source| io_error(&self.part, "written", source))?;
        fs::rename(&self.part, &self.whole).map_err(|source| io_error(&self.whole, "written", source))?;
        Ok(self.whole)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), RecordError> {
        let text = serde_json::to_string(line)
            .map(|text| text + "\n")
            .map_err(io::Error::from);
        let written = text.and_then(|text| self.file.write_all(text.as_bytes()));
        written.map_err(|source| io_error(&self.part, "written", source))
    }
}

/// Where the samples of the calibration `out` are: complete, and under way.
#[must_use]
pub fn paths(out: &Path) -> (PathBuf, PathBuf) {
    (beside(out, "samples.jsonl"), beside(out, "samples.jsonl.part"))
}

/// `worker.json` → `worker.samples.jsonl`, and `worker-10.0.0.1` → `worker-10.0.0.1.samples.jsonl`: only `.json` goes.
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

/// Reads a file of samples. A last line that was cut off is passed over.
///
/// # Errors
/// If it cannot be read, or is something else.
pub fn read(path: &Path) -> Result<(Head, Vec<Measured>), RecordError> {
    let unreadable = |source| io_error(path, "read", source);
    let file = File::open(path).map_err(unreadable)?;
    let mut lines = BufReader::new(file.take(LARGEST_FILE_BYTES)).lines();
    let foreign = |line, expected| {
        move |source| RecordError::Line {
            path: path.to_owned(),
            line,
            expected,
            source,
        }
    };
    let first = lines.next().transpose().map_err(unreadable)?.unwrap_or_default();
    let head: Head = serde_json::from_str(&first).map_err(foreign(1, "the head of a measurement"))?;
    if head.version != VERSION {
        return Err(RecordError::Version {
            path: path.to_owned(),
            found: head.version,
        });
    }
    let mut samples = Vec::new();
    for (at, line) in lines.enumerate() {
        let line = line.map_err(unreadable)?;
        match serde_json::from_str(&line) {
            Ok(measured) => samples.push(measured),
            Err(error) if error.is_eof() => break,
            Err(error) => return Err(foreign(at + 2, "a sample")(error)),
        }
    }
    Ok((head, samples))
}

fn io_error(path: &Path, done: &'static str, source: io::Error) -> RecordError {
    RecordError::Io {
        path: path.to_owned(),
        done,
        source,
    }
}

/// Writes `bytes` to `path` in one step: into a file beside it that then takes its name, so that neither a crash nor a
/// full disk leaves half of it, and an older one stays where it is until then.
///
/// # Errors
/// If the system refuses; the older one then stays as it was.
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
    fn what_was_measured_before_an_interruption_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("gpu-0.json");
        let mut record = Record::begin(&out, head()).unwrap();
        record.add(measured(8)).unwrap();
        let part = record.part().to_owned();
        drop(record);
        // The process was killed while it wrote a line.
        let cut = fs::read_to_string(&part).unwrap() + "{\"cell\":{\"cached_to";
        fs::write(&part, cut).unwrap();
        let mut record = Record::resume(&out, head()).unwrap();
        assert!(record.has(&measured(8).cell) && !record.has(&measured(16).cell));
        record.add(measured(16)).unwrap();
        let whole = record.complete().unwrap();
        assert_eq!(whole, folder.path().join("gpu-0.samples.jsonl"));
        assert_eq!(read(&whole).unwrap(), (head(), vec![measured(8), measured(16)]));
        assert!(!part.exists());
    }

    #[test]
    fn samples_of_two_clocks_are_not_mixed() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::begin(&folder.path().join("gpu-0.json"), head()).unwrap();
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
        drop(Record::begin(&out, head()).unwrap());
        let other = Head {
            grid: Grid {
                seed: 2,
                ..head().grid
            },
            ..head()
        };
        let error = Record::resume(&out, other).unwrap_err().to_string();
        assert!(
            error.contains("another grid or seed; leave out --resume"),
            "{error}"
        );
    }

    #[test]
    fn a_line_that_is_no_sample_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.jsonl");
        let first = serde_json::to_string(&head()).unwrap();
        fs::write(&path, format!("{first}\n{{\"cell\": 1}}\n")).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with("line 2: expected a sample"), "{error}");
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
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
