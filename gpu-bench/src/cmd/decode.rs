//! `gpu-bench decode URL`: time per output token by batch size and context, and how decoding slows prefills. Streams of
//! a batch share the same primed history, so that their prefills are short. Their pace is measured while all of them
//! run, in bytes of text, because an event may contain several tokens. Models: `tpot = base + b·(per_sequence +
//! per_token·context)` and `prefill(b) = prefill(0)·(1 + drag·b)`.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use policy::stats::median;
use serde::Serialize;
use tokio::task::JoinSet;

use super::worker::ReachArgs;
use crate::fit::line;
use crate::measure;
use crate::sample::Cell;
use crate::source::Source as _;
use crate::source::http::chat::{Answer, Ask};
use crate::source::http::worker::Worker;

/// New tokens of each stream's prompt.
const OWN_TOKENS: u64 = 32;
/// Minimum length in tokens of a stream that decodes in the background.
const BACKGROUND_TOKENS: u32 = 100_000;

/// Measure time per output token by batch size and context, and how decoding slows prefills
///
/// Sends batches of streams that decode together, and single prompts beside them. The worker should otherwise be
/// idle. Exit code 1: nothing could be measured.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example:\n  gpu-bench decode http://10.0.0.1:8000 --batch 1,8,32 --context 1024,8192 --json"
)]
pub struct Args {
    /// How to reach the worker.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Batch sizes: streams that decode together.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Vec<u32>,
    /// Tokens of context per stream.
    #[arg(long, value_delimiter = ',', default_value = "512,4096", value_parser = clap::value_parser!(u64).range(64..=4_194_304))]
    pub context: Vec<u64>,
    /// Tokens generated per stream.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub tokens: u32,
    /// Tokens of the prompts that are measured during a batch.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub prefill: u64,
    /// Measurements per combination.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The pace of one batch size and context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decoded {
    /// Number of streams.
    pub batch: u32,
    /// Requested tokens of context.
    pub context_tokens: u64,
    /// Milliseconds between two tokens of a stream; the median of the repeats.
    pub tpot_ms: f64,
}

/// The prefill time during a batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Number of decoding streams.
    pub batch: u32,
    /// The median prefill.
    pub prefill_ms: f64,
    /// Ratio to the prefill time of an idle worker.
    pub times: f64,
}

/// The result of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The worker's base URL.
    pub worker: String,
    /// The model that was measured.
    pub model: String,
    /// The pace by batch size and context.
    pub decoded: Vec<Decoded>,
    /// Time of a step of an empty batch.
    pub base_ms: f64,
    /// Time that each sequence adds to a step.
    pub per_sequence_ms: f64,
    /// Time that each token of a sequence's context adds to a step; `None` if only one context was measured.
    pub per_context_token_ms: Option<f64>,
    /// Prefill times during batches.
    pub beside: Vec<Beside>,
    /// The share by which each decoding sequence lengthens a prefill.
    pub drag: f64,
}

/// Measures and prints. Fails if the worker cannot be measured.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = measure::runtime()?.block_on(find(args))?;
    super::print(&found, args.json, table)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the pace of batches and the prefills beside them. Fails if the worker cannot be measured.
pub async fn find(args: &Args) -> anyhow::Result<Found> {
    let mut worker = Worker::prepare(args.reach.client()?, args.reach.model.as_deref(), None).await?;
    let mut decoded = Vec::new();
    for &context_tokens in &args.context {
        for &batch in &args.batch {
            let mut paces = Vec::new();
            for _ in 0..args.repeats {
                paces.push(pace(&mut worker, batch, context_tokens, args.tokens).await?);
            }
            decoded.push(Decoded {
                batch,
                context_tokens,
                tpot_ms: median(paces),
            });
        }
    }
    let mut beside = Vec::new();
    for batch in std::iter::once(0).chain(args.batch.iter().copied()) {
        let prefill_ms = prefill_beside(&mut worker, batch, args).await?;
        let idle = beside
            .first()
            .map_or(prefill_ms, |first: &Beside| first.prefill_ms);
        beside.push(Beside {
            batch,
            prefill_ms,
            times: prefill_ms / idle,
        });
    }
    let several = args
        .context
        .iter()
        .any(|context| Some(context) != args.context.first());
    let [base_ms, per_sequence_ms, per_token] = steps(args, &decoded, several)?;
    Ok(Found {
        worker: worker.place().to_owned(),
        model: worker.facts().model.clone(),
        decoded,
        base_ms,
        per_sequence_ms,
        per_context_token_ms: several.then_some(per_token),
        drag: drag(&beside),
        beside,
    })
}

/// Fits the times per step, per sequence and per token of context. Fails if the batches do not determine them.
fn steps(args: &Args, decoded: &[Decoded], several: bool) -> anyhow::Result<[f64; 3]> {
    let points: Vec<([f64; 3], f64)> = decoded
        .iter()
        .map(|one| {
            let batch = f64::from(one.batch);
            ([1.0, batch, batch * one.context_tokens as f64], one.tpot_ms)
        })
        .collect();
    let more_than_one = args.batch.iter().any(|batch| Some(batch) != args.batch.first());
    line(
        &points,
        [true, more_than_one, more_than_one && several],
    )
    .context(
        "the batches do not determine the times per step and per sequence; measure more of them (--batch, --context)",
    )
}

fn drag(beside: &[Beside]) -> f64 {
    let (above, below) = beside.iter().fold((0.0, 0.0), |(above, below), one| {
        let batch = f64::from(one.batch);
        (above + batch * (one.times - 1.0).max(0.0), below + batch * batch)
    });
    if below > 0.0 { above / below } else { 0.0 }
}

fn cell(context_tokens: u64) -> Cell {
    Cell {
        cached_tokens: context_tokens.saturating_sub(OWN_TOKENS),
        uncached_tokens: OWN_TOKENS,
        pass: 0,
    }
}

/// Returns the milliseconds between two tokens of a stream while the whole batch runs.
async fn pace(worker: &mut Worker, batch: u32, context_tokens: u64, tokens: u32) -> anyhow::Result<f64> {
    let began = std::time::Instant::now();
    let mut streams = JoinSet::new();
    let mut prompts = Vec::new();
    for _ in 0..batch {
        prompts.push(worker.prompt(cell(context_tokens)).await?);
    }
    for prompt in prompts {
        let (client, model) = (worker.client().clone(), worker.facts().model.clone());
        let sent_ms = began.elapsed().as_secs_f64() * 1e3;
        streams.spawn(async move {
            let ask = Ask {
                model: &model,
                prompt: &prompt,
                tokens,
                tiers: false,
            };
            client.chat(ask).await.map(|answer| (sent_ms, answer))
        });
    }
    let mut answers: Vec<(f64, Answer)> = Vec::new();
    while let Some(answer) = streams.join_next().await {
        answers.push(answer.context("a stream was lost")??);
    }
    let first = |(sent, answer): &(f64, Answer)| sent + answer.pieces.first().map_or(0.0, |(at, _)| at.0);
    let last = |(sent, answer): &(f64, Answer)| sent + answer.pieces.last().map_or(0.0, |(at, _)| at.0);
    let (from, to) = (
        answers.iter().map(first).fold(0.0, f64::max),
        answers.iter().map(last).fold(f64::INFINITY, f64::min),
    );
    let said: f64 = answers
        .iter()
        .map(|(sent, answer)| said_between(answer, from - sent, to - sent))
        .sum();
    ensure!(
        to > from && said >= f64::from(batch),
        "the {batch} streams of {context_tokens} tokens of context barely overlapped; raise --tokens"
    );
    Ok((to - from) * f64::from(batch) / said)
}

/// Returns the tokens of an answer received after `from` and until `to`, in proportion to its bytes.
fn said_between(answer: &Answer, from: f64, to: f64) -> f64 {
    let all: usize = answer.pieces.iter().map(|(_, bytes)| bytes).sum();
    let within = answer.pieces.iter().filter(|(at, _)| at.0 > from && at.0 <= to);
    let bytes: usize = within.map(|(_, bytes)| bytes).sum();
    answer.generated as f64 * bytes as f64 / all.max(1) as f64
}

async fn prefill_beside(worker: &mut Worker, batch: u32, args: &Args) -> anyhow::Result<f64> {
    let context = args.context.first().copied().unwrap_or(64);
    let mut streams = JoinSet::new();
    let (begun, mut told) = tokio::sync::mpsc::channel(batch.max(1) as usize);
    let longest = worker.facts().context_tokens;
    let room = longest.map_or(BACKGROUND_TOKENS, |longest| {
        u32::try_from(longest.saturating_sub(context + 128))
            .unwrap_or(BACKGROUND_TOKENS)
            .clamp(1, BACKGROUND_TOKENS)
    });
    for _ in 0..batch {
        let prompt = worker.prompt(cell(context)).await?;
        let (client, model, begun) = (
            worker.client().clone(),
            worker.facts().model.clone(),
            begun.clone(),
        );
        streams.spawn(async move {
            let ask = Ask {
                model: &model,
                prompt: &prompt,
                tokens: room,
                tiers: false,
            };
            client
                .chat_and_tell(ask, move || {
                    let _ = begun.try_send(());
                })
                .await
                .map(drop)
        });
    }
    drop(begun);
    for _ in 0..batch {
        if told.recv().await.is_none() {
            let ended = streams.join_next().await.context("a stream was lost")?;
            ended.context("a stream was lost")??;
            anyhow::bail!("a stream ended before a prompt was measured beside it");
        }
    }
    let mut times = Vec::new();
    for _ in 0..args.repeats.max(3) {
        let prompt = worker.fresh_tokens(args.prefill as f64);
        let answer = worker.client().chat(worker.question(&prompt, 1)).await?;
        times.push(worker.prefill(&answer)?.0);
    }
    ensure!(
        streams.len() == batch as usize && streams.try_join_next().is_none(),
        "streams ended while a prompt was measured beside them; fewer --batch, or a longer context window, may help"
    );
    // Close the streams, so that the engine is idle when the next batch begins.
    streams.shutdown().await;
    Ok(median(times))
}

fn table(found: &Found) -> String {
    let mut out = format!(
        "{} ({})\n\n  batch  context  ms per token\n",
        found.worker, found.model
    );
    for one in &found.decoded {
        out.push_str(&format!(
            "{:>7} {:>8} {:>13.3}\n",
            one.batch, one.context_tokens, one.tpot_ms
        ));
    }
    let per_token = found.per_context_token_ms.map_or(String::new(), |per_token| {
        format!(" + {per_token:.3e} · batch · context")
    });
    out.push_str(&format!(
        "\n  ms per token = {:.4} + {:.4} · batch{per_token}\n\n  beside  prefill ms  times\n",
        found.base_ms, found.per_sequence_ms
    ));
    for one in &found.beside {
        out.push_str(&format!(
            "{:>8} {:>11.2} {:>6.2}\n",
            one.batch, one.prefill_ms, one.times
        ));
    }
    out.push_str(&format!(
        "\n  each decoding sequence makes a prefill {:.2} % longer",
        found.drag * 100.0
    ));
    out
}
