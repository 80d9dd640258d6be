//! Where turns come from: a file, or a generator by seed.

use std::convert::Infallible;
use std::path::PathBuf;
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
        if let Some(seed) = text.strip_prefix("gen:agentic:") {
            let seed = seed.parse().map_err(|_| BadWorkload::Form(text.to_owned()))?;
            return Ok(Self::Agentic(seed));
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
    /// Reads it: the first `limit` turns, or as many as [`TraceSource::turns`] gives without a limit.
    ///
    /// # Errors
    /// What is wrong with the file, by line and field.
    pub fn read(&self, limit: Option<usize>) -> Result<Trace, TraceFileError> {
        let Self::File(path) = self else {
            let turns = self.turns(limit)?.collect::<Result<_, _>>()?;
            return Ok(Trace {
                turns,
                block_tokens: None,
                classes: vec!["default".to_owned()],
            });
        };
        let mut file = TraceFile::open(path, Format::Auto)?;
        let limited = file.by_ref().take(limit.unwrap_or(usize::MAX));
        let turns = limited.collect::<Result<_, _>>()?;
        let reader = file.reader();
        let class = |at: usize| {
            reader
                .class_name(ClassId(at as u16))
                .unwrap_or_default()
                .to_owned()
        };
        Ok(Trace {
            turns,
            block_tokens: reader.meta().block_size,
            classes: (0..reader.class_count()).map(class).collect(),
        })
    }

    /// Tokens per block, where the trace has blocks. Reads a file up to its first turn.
    ///
    /// # Errors
    /// When a file cannot be read so far.
    pub fn block_size(&self) -> Result<Option<u32>, TraceFileError> {
        let Self::File(path) = self else { return Ok(None) };
        let mut file = TraceFile::open(path, Format::Auto)?;
        file.next().transpose()?;
        Ok(file.reader().meta().block_size)
    }

    /// The first `limit` turns; all of a file, and [`GENERATED_TURNS`] of a generator, when there is no limit.
    ///
    /// # Errors
    /// When a file cannot be opened. What is wrong inside it comes with the turn.
    pub fn turns(&self, limit: Option<usize>) -> Result<Turns, TraceFileError> {
        match self {
            Self::File(path) => {
                let file = TraceFile::open(path, Format::Auto)?;
                Ok(Box::new(file.take(limit.unwrap_or(usize::MAX))))
            }
            Self::Agentic(seed) => {
                let turns = Agentic::new(*seed).take(limit.unwrap_or(GENERATED_TURNS));
                Ok(Box::new(turns.map(Ok)))
            }
            Self::Generated(workload) => {
                let generator = Generator::new(workload).into_iter().flatten();
                Ok(Box::new(generator.take(limit.unwrap_or(GENERATED_TURNS)).map(Ok)))
            }
        }
    }
}
