//! Where turns come from: a file, or a generator by seed.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use policy::simulate::agentic::Agentic;
use policy::simulate::generate::{BadWorkload, Generator, Workload};
use policy::trace::{ClassId, Format, Turn};

use crate::trace_file::{TraceFile, TraceFileError};

/// Turns that a generated workload has unless a number is asked for: the length of the published experiments.
pub const GENERATED_TURNS: usize = 2000;

/// A trace as named on a command line: a path, or `gen:NAME:SEED[:key=value,…]`.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceSource {
    /// A trace file, plain or gzip, of any format.
    File(PathBuf),
    /// A generated workload.
    Generated(Workload),
    /// Generated coding agents, by seed.
    Agentic(u64),
}

impl FromStr for TraceSource {
    type Err = BadWorkload;

    fn from_str(text: &str) -> Result<Self, BadWorkload> {
        if let Some(rest) = text.strip_prefix("gen:agentic")
            && (rest.is_empty() || rest.starts_with(':'))
        {
            let seed = rest.strip_prefix(':').and_then(|seed| seed.parse().ok());
            return seed
                .map(Self::Agentic)
                .ok_or_else(|| BadWorkload::Agentic(text.to_owned()));
        }
        if text.starts_with("gen:") {
            return text.parse().map(Self::Generated);
        }
        let path: Result<PathBuf, Infallible> = text.parse();
        let Ok(path) = path;
        Ok(Self::File(path))
    }
}

/// Turns in order, until the end or the first error.
pub type Turns = Box<dyn Iterator<Item = Result<Turn, TraceFileError>>>;

/// A trace at its start.
pub struct OpenTrace {
    /// What is to come.
    pub turns: Turns,
    /// Tokens per block, where it names blocks.
    pub block_tokens: Option<u32>,
}

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    /// Its turns, in order.
    pub turns: Vec<Turn>,
    /// Tokens per block, where it names blocks.
    pub block_tokens: Option<u32>,
    /// The names of its traffic classes, by [`policy::trace::ClassId`].
    pub classes: Vec<String>,
}

impl TraceSource {
    /// Reads it: the first `limit` turns, or as many as [`TraceSource::open`] gives without a limit.
    ///
    /// # Errors
    /// What is wrong with the file, by line and field; that there are no turns.
    pub fn read(&self, limit: Option<usize>) -> Result<Trace, TraceFileError> {
        let Self::File(path) = self else {
            let turns = self.open(limit)?.turns.collect::<Result<_, _>>()?;
            return Ok(Trace {
                turns,
                block_tokens: None,
                classes: vec!["default".to_owned()],
            });
        };
        let mut file = TraceFile::open(path, Format::Auto)?;
        Trace::of_file(&mut file, path, limit)
    }

    /// The first `limit` turns; all of a file, and [`GENERATED_TURNS`] of a generator, when there is no limit. A file is
    /// opened once and read up to its first turn, so that a pipe does as well.
    ///
    /// # Errors
    /// When a file cannot be opened, its first turn cannot be read or it has none; when a generator cannot be built.
    /// What is wrong with a later line comes with its turn.
    pub fn open(&self, limit: Option<usize>) -> Result<OpenTrace, TraceFileError> {
        let generated = limit.unwrap_or(GENERATED_TURNS);
        let (turns, block_tokens): (Turns, _) = match self {
            Self::File(path) => {
                let mut file = TraceFile::open(path, Format::Auto)?;
                let first = file.next().ok_or_else(|| no_turns(path))??;
                let block_tokens = file.reader().meta().block_size;
                let turns = std::iter::once(Ok(first)).chain(file);
                (Box::new(turns.take(limit.unwrap_or(usize::MAX))), block_tokens)
            }
            Self::Agentic(seed) => (Box::new(Agentic::new(*seed).take(generated).map(Ok)), None),
            Self::Generated(workload) => (Box::new(Generator::new(workload)?.take(generated).map(Ok)), None),
        };
        Ok(OpenTrace { turns, block_tokens })
    }
}

impl Trace {
    /// A trace that is in memory already.
    ///
    /// # Errors
    /// What is wrong with it, by line and field; that there are no turns.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, TraceFileError> {
        Self::of_file(&mut TraceFile::of_bytes(bytes), Path::new("memory"), None)
    }

    /// A class's name.
    #[must_use]
    pub fn class_name(&self, class: u16) -> String {
        let name = self.classes.get(usize::from(class));
        name.map_or_else(|| class.to_string(), Clone::clone)
    }

    fn of_file(file: &mut TraceFile, path: &Path, limit: Option<usize>) -> Result<Self, TraceFileError> {
        let limited = file.by_ref().take(limit.unwrap_or(usize::MAX));
        let turns: Vec<Turn> = limited.collect::<Result<_, _>>()?;
        if turns.is_empty() {
            return Err(no_turns(path));
        }
        let reader = file.reader();
        let class = |at: usize| {
            reader
                .class_name(ClassId(at as u16))
                .unwrap_or_default()
                .to_owned()
        };
        Ok(Self {
            turns,
            block_tokens: reader.meta().block_size,
            classes: (0..reader.class_count()).map(class).collect(),
        })
    }
}

fn no_turns(path: &Path) -> TraceFileError {
    TraceFileError::NoTurns {
        name: path.display().to_string(),
    }
}
