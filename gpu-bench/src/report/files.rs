//! The report: Markdown with plots beside it, and one self-contained HTML file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::plots::{self, Plots};
use super::{date, interval, notes, short};
use crate::calibration::Calibration;
use crate::fit::Interval;
use crate::record;
use crate::sample::Sample;

/// Writes `….md`, `….html` and plots beside a calibration; returns the first two. Fails if drawing or writing fails.
pub fn write(
    calibration: &Calibration,
    samples: &[Sample],
    beside: &Path,
) -> anyhow::Result<(PathBuf, PathBuf)> {
    let plots = plots::draw(&calibration.fit, samples)?;
    let pictures = [
        ("fit", &plots.fit),
        ("residuals", &plots.residuals),
        ("leverage", &plots.leverage),
    ];
    let mut names = Vec::new();
    for (name, svg) in pictures {
        let path = record::beside(beside, &format!("{name}.svg"));
        record::replace(&path, svg.as_bytes())?;
        names.push(
            path.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
        );
    }
    let (markdown, html) = (record::beside(beside, "md"), record::beside(beside, "html"));
    record::replace(&markdown, in_markdown(calibration, &names).as_bytes())?;
    record::replace(&html, in_html(calibration, &plots).as_bytes())?;
    Ok((markdown, html))
}

/// Returns rows of (name, value, 95 % interval).
fn coefficients(calibration: &Calibration) -> [(&'static str, String, String); 3] {
    let (fit, cost) = (&calibration.fit, &calibration.fit.cost);
    let row = |name, value: f64, unit: &str, Interval { low, high }: Interval| {
        (name, format!("{} {unit}", short(value)), interval(low, high))
    };
    [
        row("α", cost.alpha_ms_per_token, "ms per uncached token", fit.alpha),
        row("β", cost.beta_ms, "ms", fit.beta),
        row(
            "γ",
            cost.gamma_ms_per_token2,
            "ms per (token × context token)",
            fit.gamma,
        ),
    ]
}

fn facts(calibration: &Calibration) -> Vec<(&'static str, String)> {
    let facts = &calibration.facts;
    let tokens = |value: Option<u64>| value.map(|tokens| tokens.to_string());
    let mut rows = vec![
        ("Worker", calibration.worker.clone()),
        ("Model", calibration.model.clone()),
    ];
    let known = [
        ("Engine", facts.engine.clone()),
        ("Device", facts.device.clone()),
        ("Driver", facts.driver.clone()),
        ("Software", facts.software.clone()),
        ("Tokens per block", tokens(facts.block_tokens)),
        ("Tokens in cache", tokens(facts.capacity_tokens)),
        (
            "Best share of the roofline",
            calibration.best_roofline_share.map(share),
        ),
        (
            "Roofline",
            facts.roofline.as_ref().map(|roofline| {
                let from = roofline.from.as_deref().unwrap_or("as told");
                format!(
                    "{:.3e} operations/s, {:.3e} bytes/s ({from})",
                    roofline.flops_per_s, roofline.bytes_per_s
                )
            }),
        ),
    ];
    rows.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?))));
    rows.extend(quality(calibration));
    rows
}

fn share(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn quality(calibration: &Calibration) -> [(&'static str, String); 7] {
    let (fit, range) = (&calibration.fit, &calibration.range);
    [
        (
            "Measured",
            format!(
                "{}, by {}",
                date(calibration.measured_at_unix_s),
                calibration.bench
            ),
        ),
        (
            "Samples",
            format!(
                "{} in {} passes; {} failed",
                fit.samples, calibration.passes, calibration.failed_probes
            ),
        ),
        (
            "Range",
            format!(
                "{} to {} cached, {} to {} uncached tokens",
                range.history.0, range.history.1, range.uncached.0, range.uncached.1
            ),
        ),
        (
            "R²",
            format!("{:.4}; without γ {:.4}", fit.r_squared, fit.plain.r_squared),
        ),
        (
            "Error",
            format!(
                "{} at the median, {} at the 95th percentile; without γ {} at the median",
                share(fit.relative_error_p50),
                share(fit.relative_error_p95),
                share(fit.plain.relative_error_p50)
            ),
        ),
        ("Outliers", share(fit.outlier_share)),
        (
            "Noise",
            format!(
                "{:.3} ms and {} of the time",
                fit.noise.constant_ms,
                share(fit.noise.share)
            ),
        ),
    ]
}

fn in_markdown(calibration: &Calibration, pictures: &[String]) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut out = format!(
        "# What a prompt costs on {}\n\n`ttft = β + α·u + γ·u·(h + u/2)`, u uncached and h cached prompt tokens.\n\n| | | 95 % |\n|---|---|---|\n",
        calibration.worker
    );
    for (name, value, interval) in coefficients(calibration) {
        let _ = writeln!(out, "| {name} | {value} | {interval} |");
    }
    out.push_str("\n| | |\n|---|---|\n");
    for (name, value) in facts(calibration) {
        let _ = writeln!(out, "| {name} | {} |", cell(&value));
    }
    for note in notes(calibration) {
        let _ = write!(out, "\n- {note}");
    }
    out.push_str("\n\n");
    for picture in pictures {
        let _ = writeln!(out, "![]({picture})\n");
    }
    out
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0}td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top;border-bottom:1px solid #ddd}\
svg{max-width:100%;height:auto}code{background:#f3f3f3;padding:.1rem .3rem}";

fn in_html(calibration: &Calibration, plots: &Plots) -> String {
    let worker = escaped(&calibration.worker);
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{worker}: what a prompt costs</title><style>{STYLE}</style>\
         <h1>What a prompt costs on {worker}</h1><p><code>ttft = β + α·u + γ·u·(h + u/2)</code>, u uncached and h cached prompt tokens.</p>\
         <table><tr><th></th><th></th><th>95 %</th></tr>"
    );
    for (name, value, interval) in coefficients(calibration) {
        let _ = write!(out, "<tr><th>{name}</th><td>{value}</td><td>{interval}</td></tr>");
    }
    out.push_str("</table><table>");
    for (name, value) in facts(calibration) {
        let _ = write!(out, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&value));
    }
    out.push_str("</table><ul>");
    for note in notes(calibration) {
        let _ = write!(out, "<li>{}</li>", escaped(&note));
    }
    let _ = writeln!(
        out,
        "</ul>{}{}{}</html>",
        plots.fit, plots.residuals, plots.leverage
    );
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_reported_by_a_worker_are_escaped() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
