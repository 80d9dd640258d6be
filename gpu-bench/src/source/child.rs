//! Samples from a process of this machine.
//!
//! It says who it is with its first line, `{"hello": {…}}` ([`Facts`]); then it answers each line on its standard input,
//! `{"cached_tokens": h, "uncached_tokens": u, "repeat": k}`, with one line, `{"cached_tokens": h, "uncached_tokens": u,
//! "prefill_ms": x, "flops": f, "bytes": b}`. The end of its input ends it. What it writes to standard error goes where
//! ours goes: a progress bar of its own, a warning of its driver.
//!
//! It is put into a process group of its own, so that Ctrl-C reaches this program alone, which then ends it.

use std::ffi::{OsStr, OsString};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::{Source, SourceError};
use crate::sample::{Cell, Facts, Sample};

/// Longest line that is read.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// Time for the end after the end of its input.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the process is of no use.
#[derive(Debug, Error)]
pub enum ChildError {
    /// It did not start.
    #[error("{command}: cannot be started; is it installed?")]
    Start {
        /// The program.
        command: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It ended.
    #[error("{command} ended ({status}) instead of answering; what it said is above")]
    Ended {
        /// The program.
        command: String,
        /// How.
        status: String,
    },
    /// It took too long.
    #[error("{command} did not answer within {} s", .patience.as_secs())]
    Silent {
        /// The program.
        command: String,
        /// How long was waited.
        patience: Duration,
    },
    /// It said something else.
    #[error("{command} answered {said:?}, which is not {expected}")]
    Foreign {
        /// The program.
        command: String,
        /// The beginning of its line.
        said: String,
        /// What it should have been.
        expected: &'static str,
        /// Why it is not.
        source: serde_json::Error,
    },
    /// The pipe broke.
    #[error("{command}: the pipe broke")]
    Pipe {
        /// The program.
        command: String,
        /// What the system said.
        source: std::io::Error,
    },
}

#[derive(Deserialize)]
struct First {
    hello: Facts,
}

/// A process that measures.
#[derive(Debug)]
pub struct Child {
    /// As it was called.
    place: String,
    facts: Facts,
    process: tokio::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// For one answer.
    patience: Duration,
    /// A question was put whose answer has not been read.
    asked: bool,
}

impl Child {
    /// Starts `program` and reads its greeting, for which it has `start`; each answer may take `patience`.
    ///
    /// # Errors
    /// If it does not start, ends, or greets otherwise.
    pub async fn start(
        program: &OsStr,
        arguments: &[OsString],
        start: Duration,
        patience: Duration,
    ) -> Result<Self, ChildError> {
        let place = std::iter::once(program)
            .chain(arguments.iter().map(OsString::as_os_str))
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        let spawned = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let failed = |source| ChildError::Start {
            command: place.clone(),
            source,
        };
        let mut process = spawned.map_err(failed)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut child = Self {
            place,
            facts: Facts::default(),
            process,
            input: Some(input),
            output: BufReader::new(output),
            patience,
            asked: false,
        };
        let line = child.line(start).await?;
        let First { hello } = child.read(&line, "a line {\"hello\": …}")?;
        child.facts = hello;
        Ok(child)
    }

    /// Ends it, and says how it ended.
    ///
    /// # Errors
    /// If it does not end by itself in a few seconds; then it is killed.
    pub async fn end(mut self) -> Result<ExitStatus, ChildError> {
        drop(self.input.take());
        match tokio::time::timeout(PATIENCE, self.process.wait()).await {
            Ok(ended) => ended.map_err(|source| self.pipe(source)),
            Err(_) => Err(self.silent(PATIENCE)),
        }
    }

    async fn ask(&mut self, cell: Cell) -> Result<Sample, ChildError> {
        if std::mem::replace(&mut self.asked, true) {
            // The asker of before left without the answer.
            self.line(self.patience).await?;
        }
        let mut line = serde_json::to_string(&cell).map_err(|error| self.pipe(error.into()))?;
        line.push('\n');
        let written = match &mut self.input {
            Some(input) => input.write_all(line.as_bytes()).await,
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Err(self.ended().await),
            Err(source) => return Err(self.pipe(source)),
        }
        let line = self.line(self.patience).await?;
        self.asked = false;
        self.read(&line, "a sample")
    }

    async fn line(&mut self, patience: Duration) -> Result<String, ChildError> {
        let mut line = String::new();
        let mut bounded = (&mut self.output).take(LONGEST_LINE_BYTES);
        match tokio::time::timeout(patience, bounded.read_line(&mut line)).await {
            Err(_) => Err(self.silent(patience)),
            Ok(Err(source)) => Err(self.pipe(source)),
            Ok(Ok(0)) => Err(self.ended().await),
            Ok(Ok(_)) => Ok(line),
        }
    }

    fn read<'a, T: Deserialize<'a>>(&self, line: &'a str, expected: &'static str) -> Result<T, ChildError> {
        serde_json::from_str(line).map_err(|source| ChildError::Foreign {
            command: self.place.clone(),
            said: line.trim_end().chars().take(200).collect(),
            expected,
            source,
        })
    }

    async fn ended(&mut self) -> ChildError {
        match tokio::time::timeout(PATIENCE, self.process.wait()).await {
            Ok(Ok(status)) => ChildError::Ended {
                command: self.place.clone(),
                status: status.to_string(),
            },
            Ok(Err(source)) => self.pipe(source),
            Err(_) => self.silent(PATIENCE),
        }
    }

    fn pipe(&self, source: std::io::Error) -> ChildError {
        ChildError::Pipe {
            command: self.place.clone(),
            source,
        }
    }

    fn silent(&self, patience: Duration) -> ChildError {
        ChildError::Silent {
            command: self.place.clone(),
            patience,
        }
    }
}

impl Source for Child {
    fn place(&self) -> &str {
        &self.place
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn measure(&mut self, cell: Cell) -> Result<Sample, SourceError> {
        Ok(self.ask(cell).await?)
    }
}

#[cfg(test)]
mod tests;
