//! Sources of turns: a file, or a generator by seed.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::agentic::Agentic;
use crate::generate::{BadWorkload, Generator, Workload};
use crate::hot::{self, Hot};
use crate::trace::{ClassId, Format, Turn};
use policy::fleet_record::FleetRecord;

use crate::trace_file::{TraceFile, TraceFileError};

/// Default number of generated turns, the length of the published experiments.
pub const GENERATED_TURNS: usize = 2000;

/// A prefix that is followed by a seed alone, the generator's name, and its constructor.
type BySeed = (&'static str, &'static str, fn(u64) -> TraceSource);

const BY_SEED: [BySeed; 5] = [
    ("gen:agentic", "agentic", TraceSource::Agentic),
    ("gen:agents", "agentic", TraceSource::Agentic),
    ("agents", "agentic", TraceSource::Agentic),
    ("gen:hot", "hot", TraceSource::Hot),
    ("hot", "hot", TraceSource::Hot),
];

/// A trace as named on the command line: a path, `gen:NAME:SEED[:key=value,…]`, `agents:SEED` or `hot:SEED`.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceSource {
    /// A trace file, plain or gzip, of any format.
    File(PathBuf),
    /// A generated workload.
    Generated(Workload),
    /// Generated coding agents, by seed.
    Agentic(u64),
    /// Generated conversations with assistants that share few system prompts, by seed.
    Hot(u64),
}

/// Parses a trace on the command line, and keeps its spelling for reports. Fails for an unknown generator.
pub fn named(text: &str) -> Result<(String, TraceSource), BadWorkload> {
    Ok((text.to_owned(), text.parse()?))
}

impl FromStr for TraceSource {
    type Err = BadWorkload;

    fn from_str(text: &str) -> Result<Self, BadWorkload> {
        for (spelling, name, source) in BY_SEED {
            if let Some(seed) = seed_of(text, spelling) {
                let text = text.to_owned();
                return seed.map(source).ok_or(BadWorkload::Seed { text, name });
            }
        }
        if text.starts_with("gen:") {
            return text.parse().map(Self::Generated);
        }
        let path: Result<PathBuf, Infallible> = text.parse();
        let Ok(path) = path;
        Ok(Self::File(path))
    }
}

/// Returns the seed after `spelling`; `Some(None)` without a valid seed; `None` for other text, such as a bare `hot`,
/// which is a file.
fn seed_of(text: &str, spelling: &str) -> Option<Option<u64>> {
    let rest = text.strip_prefix(spelling)?;
    match rest.strip_prefix(':') {
        Some(seed) => Some(seed.parse().ok()),
        None if rest.is_empty() && spelling.starts_with("gen:") => Some(None),
        None => None,
    }
}

/// Turns in order, until the end or the first error.
pub type Turns = Box<dyn Iterator<Item = Result<Turn, TraceFileError>>>;

/// A trace at its start.
pub struct OpenTrace {
    pub turns: Turns,
    /// Tokens per block, if the trace has blocks.
    pub block_tokens: Option<u32>,
}

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    /// Turns in order.
    pub turns: Vec<Turn>,
    /// Tokens per block, if the trace has blocks.
    pub block_tokens: Option<u32>,
    /// Names of the traffic classes, by [`crate::trace::ClassId`].
    pub classes: Vec<String>,
    /// Fleet that served the turns, if it was captured.
    pub fleet: Option<FleetRecord>,
}

impl TraceSource {
    /// Reads the first `limit` turns, or as many as [`TraceSource::open`] does. Fails on a fault, or without turns.
    pub fn read(&self, limit: Option<usize>) -> Result<Trace, TraceFileError> {
        let Self::File(path) = self else {
            let OpenTrace { turns, block_tokens } = self.open(limit)?;
            return Ok(Trace {
                turns: turns.collect::<Result<_, _>>()?,
                block_tokens,
                classes: vec!["default".to_owned()],
                fleet: None,
            });
        };
        let mut file = TraceFile::open(path, Format::Auto)?;
        Trace::of_file(&mut file, path, limit)
    }

    /// Opens the first `limit` turns: by default all of a file, or [`GENERATED_TURNS`] of a generator. A file is opened
    /// once and read up to its first turn, so that a pipe can be used. Fails if that is impossible, or a generator
    /// cannot be built. Faults in later lines are returned in place of the turn.
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
            Self::Hot(seed) => (
                Box::new(Hot::new(*seed).take(generated).map(Ok)),
                Some(hot::BLOCK_TOKENS),
            ),
            Self::Generated(workload) => (Box::new(Generator::new(workload)?.take(generated).map(Ok)), None),
        };
        Ok(OpenTrace { turns, block_tokens })
    }
}

impl Trace {
    /// Parses a trace in memory. Fails on a fault, with line and field, or without turns.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, TraceFileError> {
        Self::of_file(&mut TraceFile::of_bytes(bytes), Path::new("memory"), None)
    }

    /// Returns a class's name, or its number if it has none.
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
            fleet: reader.fleet().cloned(),
        })
    }
}

fn no_turns(path: &Path) -> TraceFileError {
    TraceFileError::NoTurns {
        name: path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators_by_seed_have_several_spellings() {
        for text in ["gen:agentic:7", "gen:agents:7", "agents:7"] {
            assert_eq!(text.parse(), Ok(TraceSource::Agentic(7)), "{text}");
        }
        for text in ["gen:hot:7", "hot:7"] {
            assert_eq!(text.parse(), Ok(TraceSource::Hot(7)), "{text}");
        }
        for text in ["gen:hot", "hot:", "hot:x", "agents:1:gap_s=2", "gen:agentic:-1"] {
            let refused = text.parse::<TraceSource>().map_err(|error| error.to_string());
            assert!(
                refused.is_err_and(|said| said.contains("takes no parameters")),
                "{text}"
            );
        }
    }

    #[test]
    fn what_looks_like_a_generator_may_be_a_file() {
        for text in ["hot", "agents", "hot.jsonl", "./hot:7", "hotter:7"] {
            assert_eq!(text.parse(), Ok(TraceSource::File(text.into())), "{text}");
        }
    }

    #[test]
    fn hot_prefixes_are_shared_in_blocks() {
        let trace = TraceSource::Hot(1).read(Some(10)).map(|trace| trace.block_tokens);
        assert_eq!(trace.ok(), Some(Some(hot::BLOCK_TOKENS)));
    }
}
