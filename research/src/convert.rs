//! `tailroute-lab trace`: any trace, or a generated one, as a turn trace.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use simulator::trace::Turn;
use simulator::trace_source::{OpenTrace, TraceSource};

/// Write a trace as a turn trace, one JSON object per line
///
/// Reads a file of any format, or a generator. Keeps lengths, times and blocks, but neither classes nor measured times.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute-lab trace gen:wildchat:1 --turns 500 > wildchat.jsonl\n  \
    tailroute-lab trace conversation_trace.jsonl > mooncake.jsonl")]
pub struct Args {
    /// Trace file (turn trace, capture, Mooncake or Bailian; plain or gzip), or a generator: gen:wildchat:SEED,
    /// gen:sharegpt:SEED, agents:SEED or hot:SEED.
    #[arg(value_name = "FILE")]
    trace: TraceSource,
    /// Number of turns. Defaults to all of a file, or 2000 of a generator.
    #[arg(long)]
    turns: Option<usize>,
}

/// Writes the trace to standard output. Fails if the trace cannot be read, or standard output cannot be written to.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let OpenTrace { turns, block_tokens } = args.trace.open(args.turns)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let meta = block_tokens.map(|tokens| Ok(json!({ "meta": { "bs": tokens } })));
    for line in meta.into_iter().chain(turns.map(|turn| turn.map(line))) {
        if !goes_on(writeln!(out, "{}", line?))? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    goes_on(out.flush())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns whether standard output still has a reader.
fn goes_on(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write the trace"),
    }
}

fn line(turn: Turn) -> Value {
    let mut line = json!({
        "ts": turn.ts_s,
        "conv": turn.conversation.0,
        "turn": turn.turn,
        "prompt_tokens": turn.prompt_tokens.0,
        "history_tokens": turn.history_tokens.0,
        "response_tokens": turn.response_tokens.0,
    });
    if let Some(blocks) = turn.blocks {
        line["blocks"] = json!(blocks);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use simulator::trace::{Format, Reader};

    #[test]
    fn what_is_written_is_read_again() {
        for source in ["hot:1", "gen:wildchat:1"] {
            let source: TraceSource = source.parse().unwrap();
            let OpenTrace { turns, block_tokens } = source.open(Some(40)).unwrap();
            let mut reader = Reader::new(Format::Auto);
            if let Some(tokens) = block_tokens {
                reader
                    .line(&json!({ "meta": { "bs": tokens } }).to_string())
                    .unwrap();
            }
            for turn in turns {
                let turn = turn.unwrap();
                let read = reader.line(&line(turn.clone()).to_string()).unwrap().unwrap();
                assert!((read.ts_s - turn.ts_s).abs() < 1e-9);
                let ts_s = turn.ts_s;
                assert_eq!(Turn { ts_s, ..read }, turn);
            }
        }
    }
}
