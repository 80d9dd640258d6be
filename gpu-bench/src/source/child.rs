//! Samples from a child process. The child writes `{"hello": {…}}` with its [`Facts`] as the first line. Then it
//! answers each line on its standard input, `{"cached_tokens": h, "uncached_tokens": u, "repeat": k}`, with one line,
//! `{"cached_tokens": h, "uncached_tokens": u, "prefill_ms": x, "flops": f, "bytes": b}`, until the end of its input.
//! The child inherits standard error. It has a process group of its own, so that Ctrl-C reaches only this program,
//! which then ends the child.

use std::ffi::{OsStr, OsString};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::{Source, SourceError};
use crate::sample::{Cell, Facts, Sample};

const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// Time for the child to exit after the end of its input.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why the child has failed.
#[derive(Debug, Error)]
pub enum ChildError {
    /// The child could not be started.
    #[error("{command}: cannot be started; is it installed?")]
    Start {
        /// The child's command line.
        command: String,
        source: std::io::Error,
    },
    /// The child exited.
    #[error("{command} ended ({status}) instead of answering; see its output above")]
    Ended {
        /// The child's command line.
        command: String,
        /// The exit status.
        status: String,
    },
    /// The child did not answer in time.
    #[error("{command} did not answer within {} s", .patience.as_secs())]
    Silent {
        /// The child's command line.
        command: String,
        /// The timeout.
        patience: Duration,
    },
    /// The child wrote an unexpected line.
    #[error("{command} answered {said:?}, which is not {expected}")]
    Foreign {
        /// The child's command line.
        command: String,
        /// The beginning of the line.
        said: String,
        /// The expected content.
        expected: &'static str,
        source: serde_json::Error,
    },
    /// A pipe broke.
    #[error("{command}: the pipe broke")]
    Pipe {
        /// The child's command line.
        command: String,
        source: std::io::Error,
    },
}

#[derive(Deserialize)]
struct First {
    hello: Facts,
}

/// A running child process.
#[derive(Debug)]
pub struct Child {
    /// The child's command line.
    place: String,
    facts: Facts,
    process: tokio::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    patience: Duration,
    /// Whether a request was sent whose answer has not been read.
    asked: bool,
}

impl Child {
    /// Starts `program`; its greeting may take `start`, each answer `patience`. Fails without a valid greeting.
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

    /// Closes the child's input and waits for its exit. Fails, and kills it, if it does not exit within a few seconds.
    pub async fn end(mut self) -> Result<ExitStatus, ChildError> {
        drop(self.input.take());
        match tokio::time::timeout(PATIENCE, self.process.wait()).await {
            Ok(ended) => ended.map_err(|source| self.pipe(source)),
            Err(_) => Err(self.silent(PATIENCE)),
        }
    }

    async fn ask(&mut self, cell: Cell) -> Result<Sample, ChildError> {
        if std::mem::replace(&mut self.asked, true) {
            // An earlier call was dropped before its answer was read.
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
