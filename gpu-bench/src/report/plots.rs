//! The three plots that show whether a fit is reliable.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::fit::{Diagnosis, Fit, diagnose};
use crate::sample::Sample;

const SIZE: (u32, u32) = (860, 460);
/// Distinguishable with colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const GREY: RGBColor = RGBColor(140, 140, 140);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

#[derive(Clone, Debug)]
pub(super) struct Plots {
    /// Measured and predicted times by uncached tokens, one colour per history.
    pub(super) fit: String,
    /// Residuals in standard deviations of the noise, by predicted time.
    pub(super) residuals: String,
    pub(super) leverage: String,
}

pub(super) fn draw(fit: &Fit, samples: &[Sample]) -> anyhow::Result<Plots> {
    let found = diagnose(fit, samples);
    Ok(Plots {
        fit: svg(|area| draw_fit(area, fit, samples))?,
        residuals: svg(|area| draw_residuals(area, &found))?,
        leverage: svg(|area| draw_leverage(area, &found))?,
    })
}

fn svg(draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        draw(&area)?;
        area.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(text)
}

/// Returns the range of a logarithmic axis, with a margin around the values.
fn ends(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|value| *value > 0.0) {
        low = low.min(value);
        high = high.max(value);
    }
    if low.is_finite() {
        low / 1.25..high * 1.25
    } else {
        1.0..10.0
    }
}

fn curve(
    lengths: &std::ops::Range<f64>,
    time: impl Fn(f64) -> f64 + Clone,
) -> impl Iterator<Item = (f64, f64)> + Clone {
    let (start, ratio) = (lengths.start, lengths.end / lengths.start);
    (0..=80).map(move |step| {
        let u = start * ratio.powf(f64::from(step) / 80.0);
        (u, time(u))
    })
}

/// Returns the ticks of a logarithmic axis: 1, 2 and 5 times each power of ten within the range.
fn ticks(range: &std::ops::Range<f64>) -> Vec<f64> {
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|tick| tick * 10f64.powi(decade)));
    all.filter(|tick| range.contains(tick)).collect()
}

fn draw_fit(area: &Area<'_>, fit: &Fit, samples: &[Sample]) -> anyhow::Result<()> {
    let lengths = ends(samples.iter().map(|sample| sample.uncached.as_f64()));
    let times = ends(
        samples
            .iter()
            .flat_map(|sample| [sample.prefill.0, fit.predict(sample)])
            .chain(
                histories(samples)
                    .into_iter()
                    .map(|history| fitted(fit, history, lengths.end)),
            ),
    );
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Time to first token: measured (dots), and the model (lines)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(
            lengths.clone().log_scale().with_key_points(ticks(&lengths)),
            times.clone().log_scale().with_key_points(ticks(&times)),
        )
        .map_err(|error| anyhow!("{error}"))?;
    let mesh = chart
        .configure_mesh()
        .x_desc("uncached tokens of the prompt")
        .y_desc("time to first token in ms")
        .light_line_style(WHITE)
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .draw();
    mesh.map_err(|error| anyhow!("{error}"))?;
    for (at, history) in histories(samples).into_iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let of_history = samples
            .iter()
            .filter(|sample| nearest(samples, sample.cached.0) == history);
        let dot = |at: (f64, f64)| Circle::new(at, 2, colour.mix(0.45).filled());
        let dots = of_history.map(|sample| dot((sample.uncached.as_f64(), sample.prefill.0)));
        chart.draw_series(dots).map_err(|error| anyhow!("{error}"))?;
        let line = curve(&lengths, |u| fitted(fit, history, u));
        let series = chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))
            .map_err(|error| anyhow!("{error}"))?;
        series
            .label(format!("{history} cached tokens"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let plain = curve(&lengths, |u| fit.plain.beta_ms + fit.plain.alpha_ms_per_token * u);
    let series = chart
        .draw_series(DashedLineSeries::new(plain, 6, 4, GREY.stroke_width(2)))
        .map_err(|error| anyhow!("{error}"))?;
    series
        .label("without γ")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GREY.stroke_width(2)));
    let legend = chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.85))
        .position(SeriesLabelPosition::UpperLeft)
        .draw();
    legend.map_err(|error| anyhow!("{error}"))
}

/// Returns the modelled time of a prompt in ms.
fn fitted(fit: &Fit, history: u64, uncached: f64) -> f64 {
    let (cost, h) = (&fit.cost, history as f64);
    let line = cost.beta_ms
        + cost.alpha_ms_per_token * uncached
        + cost.gamma_ms_per_token2 * uncached * (h + uncached / 2.0);
    line.max(fit.floor.map_or(0.0, |floor| floor.ms))
}

fn draw_residuals(area: &Area<'_>, found: &[Diagnosis]) -> anyhow::Result<()> {
    let times = ends(found.iter().map(|one| one.predicted_ms));
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Residuals, in standard deviations of the noise (grey: excluded)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(
            times.clone().log_scale().with_key_points(ticks(&times)),
            -FARTHEST..FARTHEST,
        )
        .map_err(|error| anyhow!("{error}"))?;
    let mesh = chart
        .configure_mesh()
        .x_desc("predicted time in ms")
        .y_desc("residual, in standard deviations")
        .light_line_style(WHITE)
        .x_label_formatter(&short)
        .draw();
    mesh.map_err(|error| anyhow!("{error}"))?;
    for level in [-2.0, 0.0, 2.0] {
        let line = LineSeries::new([(times.start, level), (times.end, level)], GREY.stroke_width(1));
        chart.draw_series(line).map_err(|error| anyhow!("{error}"))?;
    }
    let dots = found
        .iter()
        .map(|one| Circle::new((one.predicted_ms, held(one.standardised)), 3, shade(one).filled()));
    chart.draw_series(dots).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

fn draw_leverage(area: &Area<'_>, found: &[Diagnosis]) -> anyhow::Result<()> {
    let highest = found.iter().map(|one| one.leverage).fold(0.0, f64::max).max(1e-6);
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Leverage: influence of each sample on the fit",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..highest * 1.1, -FARTHEST..FARTHEST)
        .map_err(|error| anyhow!("{error}"))?;
    let mesh = chart
        .configure_mesh()
        .x_desc("leverage")
        .y_desc("residual, in standard deviations")
        .light_line_style(WHITE)
        .draw();
    mesh.map_err(|error| anyhow!("{error}"))?;
    // Leverages of three coefficients sum to 3. Twice the mean is the usual threshold.
    let line = 6.0 / found.len().max(1) as f64;
    let series = LineSeries::new([(line, -FARTHEST), (line, FARTHEST)], GREY.stroke_width(1));
    chart.draw_series(series).map_err(|error| anyhow!("{error}"))?;
    let dots = found
        .iter()
        .map(|one| Circle::new((one.leverage, held(one.standardised)), 3, shade(one).filled()));
    chart.draw_series(dots).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

/// Largest residual drawn, in standard deviations; larger ones are drawn at the edge.
const FARTHEST: f64 = 8.0;

fn held(standardised: f64) -> f64 {
    standardised.clamp(-FARTHEST, FARTHEST)
}

fn shade(one: &Diagnosis) -> RGBAColor {
    if one.weight > 0.0 {
        COLOURS[0].mix(0.25 + 0.5 * one.weight)
    } else {
        GREY.mix(0.8)
    }
}

fn short(value: &f64) -> String {
    if *value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// Returns the distinct histories, at most as many as there are colours.
fn histories(samples: &[Sample]) -> Vec<u64> {
    let mut groups: Vec<u64> = samples
        .iter()
        .map(|sample| nearest(samples, sample.cached.0))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups.truncate(COLOURS.len());
    groups
}

/// Returns the smallest history that differs from this one by at most a few blocks.
fn nearest(samples: &[Sample], cached: u64) -> u64 {
    let near = samples
        .iter()
        .map(|sample| sample.cached.0)
        .filter(|other| *other <= cached && cached - other <= 64 + other / 8);
    near.min().unwrap_or(cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_within_the_range() {
        assert_eq!(ticks(&(40.0..600.0)), [50.0, 100.0, 200.0, 500.0]);
        assert_eq!(ticks(&(0.09..0.3)), [0.1, 0.2]);
    }
}
