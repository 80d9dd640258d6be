//! Reports for the operator: a text summary, and a document with plots.

mod files;
mod plots;

use std::fmt::Write as _;

use policy::text::printable;

use crate::calibration::{Calibration, Ended};
use crate::fit::Interval;
use crate::sample::Clock;

pub use self::files::write;

/// Returns the summary, with the equivalent configuration lines.
#[must_use]
pub fn text(calibration: &Calibration) -> String {
    let fit = &calibration.fit;
    let cost = &fit.cost;
    let range = &calibration.range;
    let mut out = format!(
        "{} ({}), {} samples, {} failed\n\n  ttft = β + α·u + γ·u·(h + u/2)\n\n",
        printable(&calibration.worker),
        printable(&calibration.model),
        fit.samples,
        calibration.failed_probes
    );
    let mut row = |name: &str, value: f64, Interval { low, high }: Interval, unit: &str| {
        let _ = writeln!(
            out,
            "  {name}  {:>12} {unit:<14} 95 %: {}",
            short(value),
            interval(low, high)
        );
    };
    row("α", cost.alpha_ms_per_token, fit.alpha, "ms per token");
    row("β", cost.beta_ms, fit.beta, "ms");
    row("γ", cost.gamma_ms_per_token2, fit.gamma, "ms per token²");
    let _ = write!(
        out,
        "\n  R² {:.4}, error {:.1} % at the median and {:.1} % at the 95th percentile, {:.1} % outliers\n  \
         without γ: R² {:.4}, error {:.1} % at the median\n  \
         measured with {} to {} cached and {} to {} uncached tokens\n\n  \
         alpha_ms_per_token = {}\n  beta_ms = {}\n  gamma_ms_per_token2 = {}",
        fit.r_squared,
        fit.relative_error_p50 * 100.0,
        fit.relative_error_p95 * 100.0,
        fit.outlier_share * 100.0,
        fit.plain.r_squared,
        fit.plain.relative_error_p50 * 100.0,
        range.history.0,
        range.history.1,
        range.uncached.0,
        range.uncached.1,
        toml_number(cost.alpha_ms_per_token),
        toml_number(cost.beta_ms),
        toml_number(cost.gamma_ms_per_token2),
    );
    if let Some(floor) = fit.floor {
        let _ = write!(out, "\n  floor_ms = {}", toml_number(floor.ms));
    }
    if let Some(tokens) = calibration.facts.capacity_tokens {
        let _ = write!(out, "\n  capacity_tokens = {tokens}");
    }
    if let Some(tokens) = calibration.facts.block_tokens {
        let _ = write!(out, "\n  block_size_tokens = {tokens}");
    }
    if let Some(line) = roofline(calibration) {
        let _ = write!(out, "\n\n  {line}");
    }
    for note in notes(calibration) {
        let _ = write!(out, "\n\nnote: {note}");
    }
    out
}

/// Formats the share of the device's roofline that was reached, if both are known.
#[must_use]
pub fn roofline(calibration: &Calibration) -> Option<String> {
    let peaks = calibration.facts.roofline.as_ref()?;
    let share = calibration.best_roofline_share?;
    let from = peaks.from.as_deref().unwrap_or("of unknown origin");
    Some(format!(
        "at best {:.0} % of the roofline of {:.4} TFLOP/s and {:.1} GB/s ({from})",
        share * 100.0,
        peaks.flops_per_s / 1e12,
        peaks.bytes_per_s / 1e9
    ))
}

/// Returns warnings about a calibration.
#[must_use]
pub fn notes(calibration: &Calibration) -> Vec<String> {
    let fit = &calibration.fit;
    let mut notes = Vec::new();
    if let Some(floor) = fit.floor {
        notes.push(format!(
            "prompts of up to {:.0} uncached tokens all take {:.1} ms; the line is that of longer ones",
            floor.uncached_tokens, floor.ms
        ));
    }
    if let Some(bend) = fit.bend {
        notes.push(format!(
            "the slope changes near {:.0} uncached tokens, from {} to {} ms per token; α is between them",
            bend.uncached_tokens,
            toml_number(bend.alpha_before_ms_per_token),
            toml_number(bend.alpha_after_ms_per_token)
        ));
    }
    match calibration.ended {
        Ended::Precise => {}
        Ended::Passes => notes.push("all passes are done, but the intervals are wider than requested (--precision, --max-repeats)".to_owned()),
        Ended::Budget => notes.push("the time budget ended before the intervals reached the requested precision (--budget-s, --precision)".to_owned()),
        Ended::Busy => notes.push("the worker received other work before the measurement was complete; --resume continues".to_owned()),
        Ended::Interrupted => notes.push("the measurement was interrupted; --resume continues".to_owned()),
    }
    if calibration.clock == Clock::Client {
        notes.push(
            "the times are measured by this program, with the network in β; vLLM reports its own with \
            --enable-per-request-metrics"
                .to_owned(),
        );
    }
    if calibration.partly_cached_probes > 0 {
        notes.push(format!(
            "{} prompts found only part of their history in the cache; the cache may be smaller than the grid's histories",
            calibration.partly_cached_probes
        ));
    }
    notes
}

/// Formats an interval with as many digits as tell its ends apart, three at least and six at most.
fn interval(low: f64, high: f64) -> String {
    let ends = |digits| (rounded(low, digits), rounded(high, digits));
    let (low, high) = (3..=6)
        .map(ends)
        .find(|(low, high)| low != high)
        .unwrap_or_else(|| ends(6));
    format!("{low} to {high}")
}

/// Formats three significant digits, without an exponent unless the number is tiny.
fn short(value: f64) -> String {
    rounded(value, 3)
}

fn rounded(value: f64, digits: usize) -> String {
    let rounded: f64 = format!("{value:.*e}", digits - 1).parse().unwrap_or(value);
    if rounded == 0.0 || rounded.abs() >= 1e-5 {
        format!("{rounded}")
    } else {
        format!("{rounded:e}")
    }
}

fn date(unix_s: u64) -> String {
    let at = i64::try_from(unix_s)
        .ok()
        .and_then(|at| jiff::Timestamp::from_second(at).ok());
    at.map_or_else(
        || format!("{unix_s} s after 1970"),
        |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string(),
    )
}

fn toml_number(value: f64) -> String {
    let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(value);
    format!("{rounded:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_times_are_dates() {
        assert_eq!(
            [2.5646e-3, 20.04, 0.0, 2.54e-9, 1234.5].map(short),
            ["0.00256", "20", "0", "2.54e-9", "1230"]
        );
        assert_eq!(date(1_795_488_834), "2026-11-24 02:53 UTC");
    }

    #[test]
    fn an_interval_has_the_digits_that_tell_its_ends_apart() {
        assert_eq!(interval(0.0198, 0.0209), "0.0198 to 0.0209");
        assert_eq!(interval(0.100_02, 0.100_07), "0.1 to 0.1001");
        assert_eq!(interval(20.0, 20.0), "20 to 20");
    }

    #[test]
    fn the_configuration_lines_have_valid_toml_numbers() {
        assert_eq!(toml_number(0.123_456_789), "0.12346");
        assert_eq!(toml_number(20.0), "20.0");
        assert_eq!(toml_number(2.5e-9), "2.5e-9");
    }
}
