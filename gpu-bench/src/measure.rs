//! Runs a measurement of any [`Source`] by a [`plan`](crate::plan) and writes its files. It ends as [`Ended`] lists, or
//! when the source fails permanently or too often. The samples are on disk in every case. A calibration is written if
//! the fit is reliable; an incomplete one is called `….partial.json`, so as not to replace a complete one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::access::base_url;
use crate::calibration::{Calibration, Ended, Range};
use crate::fit::{self, Fit};
use crate::plan::{PlanArgs, share};
use crate::push::{self, ToArgs};
use crate::record::{self, Head, Measured, Record, Unfinished};
use crate::report;
use crate::sample::{Facts, Sample};
use crate::source::{Source, SourceError};
use crate::terminal;

/// Consecutive failed probes after which the measurement ends.
const MOST_FAILURES_IN_A_ROW: u32 = 3;

/// Tokens reserved for the chat template and the answer.
const ROOM_TOKENS: u64 = 64;

/// Options of the output files.
#[derive(Clone, Debug, clap::Args)]
pub struct OutputArgs {
    /// File of the calibration; samples and report are written beside it.
    #[arg(long, value_name = "FILE", default_value = "calibration.json")]
    pub out: PathBuf,
    /// Continue the unfinished measurement whose samples are beside FILE.
    #[arg(long)]
    pub resume: bool,
    /// Discard the samples of an unfinished measurement beside FILE.
    #[arg(long, conflicts_with = "resume")]
    pub restart: bool,
    /// Smallest share of the variance that the fit has to explain.
    #[arg(long, default_value_t = 0.95, value_parser = share)]
    pub min_r2: f64,
    /// Admin port of a router to send the calibration to at the end.
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub push: Option<String>,
    /// The worker's name on that router, and the credentials.
    #[command(flatten)]
    pub to: ToArgs,
    /// Print the calibration as JSON.
    #[arg(long)]
    pub json: bool,
}

impl OutputArgs {
    fn unfinished(&self) -> Unfinished {
        match (self.resume, self.restart) {
            (true, _) => Unfinished::Resume,
            (_, true) => Unfinished::Discard,
            _ => Unfinished::Keep,
        }
    }
}

/// Measures, fits, writes the files and prints the report. Fails if the result is unreliable or cannot be written.
pub async fn run<S: Source>(
    source: &mut S,
    plan: &PlanArgs,
    output: &OutputArgs,
) -> anyhow::Result<ExitCode> {
    let head = head(source, plan);
    let mut record = Record::open(&output.out, head, output.unfinished())?;
    let (ended, failed) = samples(source, plan, &mut record).await?;
    let calibration = match calibrate(&record, plan.seed, output.min_r2, ended, failed) {
        Ok(calibration) => calibration,
        Err(error) => bail!(error.context(refusal(record, ended, &output.out)?)),
    };
    let done = write(output, plan, record, &calibration)?;
    if done == ExitCode::SUCCESS {
        push::after(output.push.as_deref(), &output.to, &calibration).await?;
    }
    Ok(done)
}

/// Returns the first line of the record of a new measurement.
pub fn head<S: Source>(source: &S, plan: &PlanArgs) -> Head {
    Head {
        version: record::VERSION,
        place: source.place().to_owned(),
        facts: source.facts().clone(),
        grid: plan.grid(),
        began_at_unix_s: unix_seconds(),
    }
}

/// Measures until the plan or a limit ends it. Returns why it ended, and the number of failed probes. Fails if the
/// source fails permanently or too often, or if a sample cannot be written.
pub async fn samples<S: Source>(
    source: &mut S,
    plan: &PlanArgs,
    record: &mut Record,
) -> anyhow::Result<(Ended, u32)> {
    let longest = longest(source.facts());
    let (grid, began) = (plan.grid(), Instant::now());
    ensure!(
        !grid.pass(0, longest).is_empty(),
        "no cell of the grid fits the model's context; try a shorter --uncached"
    );
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let (mut failed, mut in_a_row) = (0_u32, 0);
    for pass in 0..plan.max_repeats.max(plan.repeats) {
        let cells = grid.pass(pass, longest);
        let bar = progress(cells.len(), pass, record.samples());
        for cell in cells {
            bar.inc(1);
            if record.has(&cell) {
                continue;
            }
            if began.elapsed() > plan.budget() {
                return Ok((Ended::Budget, failed));
            }
            let measured = tokio::select! {
                measured = source.measure(cell) => measured,
                _ = &mut interrupt => return Ok((Ended::Interrupted, failed)),
            };
            match measured {
                Ok(sample) => {
                    in_a_row = 0;
                    record.add(Measured { cell, sample })?;
                }
                Err(SourceError::Busy(_)) if !record.samples().is_empty() => {
                    return Ok((Ended::Busy, failed));
                }
                Err(error) if error.is_final() => bail!(error),
                Err(error) => {
                    in_a_row += 1;
                    failed += 1;
                    ensure!(
                        in_a_row < MOST_FAILURES_IN_A_ROW,
                        anyhow::Error::new(error).context("the worker fails too often")
                    );
                }
            }
        }
        let probes = record.samples().len() + failed as usize;
        ensure!(
            failed as usize * 5 <= probes,
            "{failed} of {probes} probes failed"
        );
        if pass + 1 >= plan.repeats && enough(plan, record) {
            return Ok((Ended::Precise, failed));
        }
    }
    Ok((Ended::Passes, failed))
}

/// Returns the longest prompt in tokens, by the context and by a cache that must also hold the next prompt.
fn longest(facts: &Facts) -> Option<u64> {
    let context = facts
        .context_tokens
        .map(|tokens| tokens.saturating_sub(ROOM_TOKENS));
    let cache = facts.capacity_tokens.map(|tokens| tokens / 10 * 9);
    context.into_iter().chain(cache).min()
}

fn enough(plan: &PlanArgs, record: &Record) -> bool {
    fit::fit(&bare(record.samples()), plan.seed).is_ok_and(|fit| plan.is_enough(&fit))
}

/// Fits a record. Fails, with the reason, if the fit is not reliable.
pub fn calibrate(
    record: &Record,
    seed: u64,
    min_r2: f64,
    ended: Ended,
    failed: u32,
) -> anyhow::Result<Calibration> {
    let samples = bare(record.samples());
    let fit = fit::fit(&samples, seed)?;
    fit::accept(&fit, &samples, min_r2)?;
    Ok(calibration(record, fit, ended, failed))
}

fn calibration(record: &Record, fit: Fit, ended: Ended, failed: u32) -> Calibration {
    let head = record.head();
    let samples = record.samples();
    let range = |value: fn(&Sample) -> u64| {
        let values = || samples.iter().map(|measured| value(&measured.sample));
        (values().min().unwrap_or(0), values().max().unwrap_or(0))
    };
    let shares: Vec<f64> = head
        .facts
        .roofline
        .iter()
        .flat_map(|roofline| {
            samples
                .iter()
                .filter_map(|measured| roofline.share(&measured.sample))
        })
        .collect();
    let partly = |measured: &&Measured| {
        (measured.sample.cached.0 as f64) < 0.75 * measured.cell.cached_tokens as f64 - ROOM_TOKENS as f64
    };
    Calibration {
        version: crate::calibration::VERSION,
        worker: head.place.clone(),
        model: head.facts.model.clone(),
        measured_at_unix_s: unix_seconds(),
        bench: concat!("gpu-bench ", env!("CARGO_PKG_VERSION")).to_owned(),
        facts: head.facts.clone(),
        grid: head.grid.clone(),
        passes: samples
            .iter()
            .map(|measured| measured.cell.pass + 1)
            .max()
            .unwrap_or(0),
        clock: samples
            .first()
            .map(|measured| measured.sample.clock)
            .unwrap_or_default(),
        ended,
        range: Range {
            history: range(|sample| sample.cached.0),
            uncached: range(|sample| sample.uncached.0),
        },
        fit,
        best_roofline_share: shares.into_iter().reduce(f64::max),
        failed_probes: failed,
        partly_cached_probes: samples.iter().filter(partly).count() as u32,
    }
}

fn is_whole(plan: &PlanArgs, record: &Record, calibration: &Calibration) -> bool {
    match calibration.ended {
        Ended::Precise | Ended::Passes => true,
        Ended::Interrupted | Ended::Busy => false,
        Ended::Budget => {
            let pass = plan.grid().pass(0, longest(&calibration.facts)).len();
            calibration.passes > plan.repeats || record.samples().len() >= pass * plan.repeats as usize
        }
    }
}

fn write(
    output: &OutputArgs,
    plan: &PlanArgs,
    record: Record,
    calibration: &Calibration,
) -> anyhow::Result<ExitCode> {
    let whole = is_whole(plan, &record, calibration);
    let path = if whole {
        output.out.clone()
    } else {
        record::beside(&output.out, "partial.json")
    };
    record::replace(
        &path,
        (serde_json::to_string_pretty(calibration)? + "\n").as_bytes(),
    )?;
    let (_, html) = report::write(calibration, &bare(record.samples()), &path)?;
    let samples = if whole {
        record.complete()?
    } else {
        record.part().to_owned()
    };
    let text = if output.json {
        serde_json::to_string_pretty(calibration)?
    } else {
        format!(
            "{}\n\nwritten to {}; report: {}; samples: {}",
            report::text(calibration),
            path.display(),
            html.display(),
            samples.display()
        )
    };
    terminal::print(&text)?;
    if whole {
        return Ok(ExitCode::SUCCESS);
    }
    terminal::complain(&format!(
        "not complete: {} is unchanged; --resume continues",
        output.out.display()
    ));
    Ok(ExitCode::FAILURE)
}

/// Returns the error text of a rejected fit. Samples of a finished measurement, which cannot be continued, are moved
/// aside.
fn refusal(record: Record, ended: Ended, out: &Path) -> anyhow::Result<String> {
    let count = record.samples().len();
    let (kept, on) = match ended {
        Ended::Interrupted | Ended::Busy | Ended::Budget => {
            (record.part().to_owned(), "; --resume continues")
        }
        Ended::Precise | Ended::Passes => (record.set_aside(out)?, ""),
    };
    let kept = kept.display();
    Ok(format!(
        "no calibration was written; the {count} samples are in {kept}{on}"
    ))
}

/// Returns the samples without their cells.
pub fn bare(measured: &[Measured]) -> Vec<Sample> {
    measured.iter().map(|measured| measured.sample).collect()
}

fn progress(cells: usize, pass: u32, before: &[Measured]) -> ProgressBar {
    let bar = ProgressBar::new(cells as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:32} {pos}/{len} prompts, {eta} left {msg}")
    {
        bar.set_style(style);
    }
    bar.set_prefix(format!("pass {}", pass + 1));
    if !before.is_empty() {
        bar.set_message(format!("({} before)", before.len()));
    }
    bar
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Builds a single-threaded runtime, so that other threads do not disturb the timing. Fails if it cannot be built.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.context("no runtime")
}
