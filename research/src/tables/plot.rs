//! TTFT percentiles by policy and capacity, as one SVG of four panels.

use anyhow::anyhow;
use plotters::prelude::*;

use super::experiment::{Extent, Setting, report, turns};
use super::paper::CAPACITIES;

/// ξ_s of the plot, in the middle of the paper's three.
pub(super) const XI_MS: f64 = 200.0;

const POLICIES: [&str; 7] = [
    "lru",
    "threshold-lru",
    "t-lru",
    "et-lru",
    "end-aware",
    "length-aware",
    "to-belady",
];

const PANELS: [&str; 4] = ["median", "p90", "p95", "p99"];

/// A policy's percentiles by capacity: `percentiles[panel][capacity]`, means over seeds.
pub(super) struct Curve {
    policy: &'static str,
    percentiles: [Vec<f64>; 4],
}

/// Colours distinguishable with colour blindness (Okabe and Ito), the strongest for the paper's policy.
pub(super) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(150, 150, 150),
];

pub(super) fn curves(extent: Extent) -> anyhow::Result<Vec<Curve>> {
    let traces: Vec<_> = (1..=extent.seeds)
        .map(|seed| turns(Setting::Wildchat, seed, extent.turns))
        .collect::<Result<_, _>>()?;
    let curve = |policy: &'static str| {
        let spec = policy.parse()?;
        let mut percentiles: [Vec<f64>; 4] = Default::default();
        for capacity in CAPACITIES {
            let mut sums = [0.0; 4];
            for trace in &traces {
                let r = report(Setting::Wildchat, trace, &spec, capacity, XI_MS);
                let values = [r.p50_ms, r.p90_ms, r.p95_ms, r.p99_ms];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            let means = sums.map(|sum| sum / traces.len().max(1) as f64);
            percentiles
                .iter_mut()
                .zip(means)
                .for_each(|(panel, mean)| panel.push(mean));
        }
        Ok(Curve { policy, percentiles })
    };
    POLICIES.into_iter().map(curve).collect()
}

pub(super) fn svg(curves: &[Curve]) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (1100, 800)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        for (panel, area) in root.split_evenly((2, 2)).iter().enumerate() {
            draw_panel(area, panel, curves).map_err(|error| anyhow!("{error}"))?;
        }
        root.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(text)
}

fn draw_panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    panel: usize,
    curves: &[Curve],
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let highest = curves
        .iter()
        .flat_map(|curve| &curve.percentiles[panel])
        .copied()
        .fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("TTFT {} (ms), threshold {XI_MS} ms", PANELS[panel]),
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(52)
        .build_cartesian_2d(0f64..10_500f64, 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("capacity (tokens)")
        .light_line_style(WHITE)
        .x_label_formatter(&|tokens| format!("{tokens:.0}"))
        .y_label_formatter(&|millis| format!("{millis:.0}"))
        .draw()?;
    for (at, curve) in curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()].stroke_width(2);
        let points = CAPACITIES
            .iter()
            .map(|capacity| *capacity as f64)
            .zip(curve.percentiles[panel].iter().copied());
        let series = chart.draw_series(LineSeries::new(points, colour))?;
        series
            .label(curve.policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    // The curves are the same in every panel.
    if panel > 0 {
        return Ok(());
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::LowerLeft)
        .draw()
}
