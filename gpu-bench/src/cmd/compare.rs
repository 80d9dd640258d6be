//! `gpu-bench compare A B`: has the worker become slower?

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::calibration::Calibration;
use crate::fit::Fit;
use crate::plan::share;

/// Compare two calibration files and fail if the second is slower
///
/// Predicts the same prompts with both. A prompt regressed if the second predicts a longer time by more than the
/// tolerance, and by more than the uncertainty of both files. Exit code 1: at least one prompt regressed, or a file
/// cannot be read.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  gpu-bench compare before.json after.json --tolerance 0.1")]
pub struct Args {
    /// The earlier calibration.
    pub before: PathBuf,
    /// The later calibration.
    pub after: PathBuf,
    /// Share by which a prompt may take longer.
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub tolerance: f64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The predictions of both calibrations for one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Cached tokens of the prompt.
    pub cached_tokens: u64,
    /// Uncached tokens of the prompt.
    pub uncached_tokens: u64,
    /// Time predicted by the earlier calibration.
    pub before_ms: f64,
    /// Time predicted by the later calibration.
    pub after_ms: f64,
    /// Uncertainty of the difference, from the 95 % intervals.
    pub open_ms: f64,
    /// Whether the later calibration is slower by more than the tolerance and the uncertainty.
    pub regressed: bool,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Differing facts (model, device and so on) as (name, before, after).
    pub differs: Vec<(&'static str, String, String)>,
    /// Prompts within the measured ranges of both files, or of the first where the ranges do not overlap.
    pub prompts: Vec<Compared>,
    /// Whether any prompt regressed.
    pub regressed: bool,
}

/// Compares and prints. Fails if a file cannot be read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = compare(
        &Calibration::read(&args.before)?,
        &Calibration::read(&args.after)?,
        args.tolerance,
    );
    super::print(&found, args.json, table)?;
    Ok(if found.regressed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Compares two calibrations.
pub fn compare(before: &Calibration, after: &Calibration, tolerance: f64) -> Comparison {
    let some = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let (a, b) = (&before.facts, &after.facts);
    let differs = [
        ("model", before.model.clone(), after.model.clone()),
        ("engine", some(&a.engine), some(&b.engine)),
        ("device", some(&a.device), some(&b.device)),
        ("driver", some(&a.driver), some(&b.driver)),
        (
            "clock",
            format!("{:?}", before.clock).to_lowercase(),
            format!("{:?}", after.clock).to_lowercase(),
        ),
    ];
    let between = |one: (u64, u64), other: (u64, u64)| {
        let (low, high) = (one.0.max(other.0), one.1.min(other.1));
        let middle = ((low.max(1) as f64) * (high.max(1) as f64)).sqrt() as u64;
        let mut points = if low <= high {
            vec![low, middle.clamp(low, high), high]
        } else {
            vec![one.0, one.1]
        };
        points.dedup();
        points
    };
    let histories = between(before.range.history, after.range.history);
    let lengths = between(before.range.uncached, after.range.uncached);
    let prompts: Vec<Compared> = histories
        .iter()
        .flat_map(|&cached| lengths.iter().map(move |&uncached| (cached, uncached)))
        .map(|(cached, uncached)| compared(&before.fit, &after.fit, cached, uncached, tolerance))
        .collect();
    Comparison {
        differs: differs.into_iter().filter(|(_, a, b)| a != b).collect(),
        regressed: prompts.iter().any(|prompt| prompt.regressed),
        prompts,
    }
}

fn compared(before: &Fit, after: &Fit, cached: u64, uncached: u64, tolerance: f64) -> Compared {
    let (h, u) = (cached as f64, uncached as f64);
    let pairs = u * (h + u / 2.0);
    let time = |fit: &Fit| {
        let cost = &fit.cost;
        let line = cost.beta_ms + cost.alpha_ms_per_token * u + cost.gamma_ms_per_token2 * pairs;
        line.max(fit.floor.map_or(0.0, |floor| floor.ms))
    };
    // Assumes independent errors of the coefficients. They partly cancel, so this overestimates the uncertainty.
    let open = |fit: &Fit| {
        let parts = [
            fit.beta.half_width(),
            fit.alpha.half_width() * u,
            fit.gamma.half_width() * pairs,
        ];
        parts.into_iter().map(|part| part * part).sum::<f64>()
    };
    let (before_ms, after_ms) = (time(before), time(after));
    let open_ms = (open(before) + open(after)).sqrt();
    Compared {
        cached_tokens: cached,
        uncached_tokens: uncached,
        before_ms,
        after_ms,
        open_ms,
        regressed: after_ms > before_ms * (1.0 + tolerance) && after_ms - before_ms > open_ms,
    }
}

fn table(found: &Comparison) -> String {
    let mut out = String::new();
    for (what, before, after) in &found.differs {
        out.push_str(&format!("{what}: {before} before, {after} after\n"));
    }
    out.push_str("  cached uncached   before ms    after ms  change\n");
    for prompt in &found.prompts {
        let change = (prompt.after_ms / prompt.before_ms - 1.0) * 100.0;
        let verdict = if prompt.regressed { "  slower" } else { "" };
        out.push_str(&format!(
            "{:>8} {:>8} {:>11.2} {:>11.2} {change:>+6.1} %{verdict}\n",
            prompt.cached_tokens, prompt.uncached_tokens, prompt.before_ms, prompt.after_ms
        ));
    }
    out.push_str(if found.regressed {
        "slower than before"
    } else {
        "not slower than before"
    });
    out
}
