//! What the experiments' command lines have in common.

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use crate::trace_source::TraceSource;

/// Which turns are run.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// Trace file (turn trace, capture, Mooncake or Bailian; plain or gzip), or a generator: gen:wildchat:SEED or
    /// gen:sharegpt:SEED[:key=value,…], agents:SEED or hot:SEED. A wrong key lists them all; docs/traces.md explains them.
    #[arg(long)]
    pub(crate) trace: TraceSource,
    /// Turns to run: all of a file, 2000 of a generator unless given.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) turns: Option<usize>,
}

/// How the report is printed.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Prints the reports as JSON, or as a table for reading.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub(crate) fn print<T: Serialize>(
        &self,
        reports: &[T],
        table: impl Fn(&[T]) -> String,
    ) -> anyhow::Result<()> {
        let text = if self.json {
            serde_json::to_string_pretty(reports)?
        } else {
            table(reports)
        };
        Ok(crate::terminal::print(&text)?)
    }
}
