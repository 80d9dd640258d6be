//! Arguments common to the experiments.

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use simulator::trace_source::TraceSource;

/// The turns to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// Trace file (turn trace, capture, Mooncake or Bailian; plain or gzip), or a generator: gen:wildchat:SEED or
    /// gen:sharegpt:SEED[:key=value,…], agents:SEED or hot:SEED. An unknown key lists all keys; docs/traces.md explains
    /// them.
    #[arg(long)]
    pub(crate) trace: TraceSource,
    /// Number of turns to run. Defaults to all of a file, or 2000 of a generator.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) turns: Option<usize>,
}

/// The format of the report.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Prints the reports as JSON, or as a table. Fails if standard output cannot be written to.
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
        Ok(simulator::terminal::print(&text)?)
    }
}
