//! `tailroute-lab tables --frontier`: the median against the tail, by the weight of prefill that makes no turn late.
//!
//! ET-LRU has that weight as ε, beside μ, the decay of its hazards, and is played in one cache on generated
//! conversations. Queue-aware T-LRU has it as μ (its ε is measured), and is played in a fleet on a trace. Points are
//! means over the seeds. LRU and T-LRU have no weight: each is a point.

use anyhow::{Context as _, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use policy::cost::PrefillCost;
use policy::route::{PolicyName, Settings};
use policy::tail::MU;
use policy::units::{Millis, Tokens};
use serde::Serialize;
use simulator::fleet::{self, CacheRule, FleetConfig, Pace, Workload};
use simulator::trace::{BLOCK_TOKENS, Turn};
use simulator::trace_source::TraceSource;

use super::experiment::{self, Setting};
use super::plot::COLOURS;
use super::{Seeds, pool};
use crate::cache::et_lru::EtLruOptions;
use crate::cache::{Future, PolicySpec};

const EPSILONS: [f64; 6] = [0.0, 0.1, 0.3, 1.0, 3.0, 10.0];
/// μ of ET-LRU in 1/s; learned where there is none.
const DECAYS: [Option<f64>; 3] = [None, Some(0.001), Some(0.01)];
const MUS: [f64; 4] = [0.0, MU, 1.0, 3.0];
const LOADS: [f64; 2] = [0.5, 0.8];

const GENERATED_TURNS: usize = 20_000;
const CAPACITY: u64 = 10_000;
const XI_MS: f64 = 150.0;

const WORKERS: usize = 4;
const BLOCKS: u64 = 2000;
const COST: PrefillCost = PrefillCost::linear(0.05, 20.0);
const OBJECTIVE: Millis = Millis(2000.0);

/// The trace without `--trace`.
const STAND_IN: &str = "gen:agentic:1";

#[derive(Debug, Serialize)]
pub(super) struct Report {
    trace: String,
    seeds: Vec<u64>,
    panels: Vec<Panel>,
}

#[derive(Debug, Serialize)]
struct Panel {
    title: String,
    /// Name of the weight that is varied, and its default.
    weight: (&'static str, f64),
    /// Policies without a weight.
    single: [(&'static str, Point); 2],
    /// Policies at each weight, the default one first.
    curves: Vec<(String, Vec<Point>)>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    weight: f64,
    p50_ms: f64,
    p95_ms: f64,
}

impl Point {
    fn of(weight: f64, samples: &[(f64, f64)]) -> Self {
        let mean = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
        Self {
            weight,
            p50_ms: mean(|sample| sample.0),
            p95_ms: mean(|sample| sample.1),
        }
    }
}

/// Returns the frontiers. Fails if the trace cannot be played.
pub(super) fn measure(
    trace: Option<&(String, TraceSource)>,
    turns: Option<usize>,
    seeds: &Seeds,
) -> anyhow::Result<Report> {
    let stand_in = || Ok::<_, anyhow::Error>((STAND_IN.to_owned(), STAND_IN.parse()?));
    let (name, source) = trace.map_or_else(stand_in, |trace| Ok(trace.clone()))?;
    let read = source.read(turns)?;
    let block_tokens = read.block_tokens.unwrap_or(BLOCK_TOKENS);
    let workload = Workload::new(&read.turns, block_tokens).context("this trace cannot be played")?;
    drop(read);
    let mut panels = vec![one_cache(turns.unwrap_or(GENERATED_TURNS), seeds)?];
    panels.extend(LOADS.map(|load| fleet(&workload, block_tokens, load, seeds)));
    Ok(Report {
        trace: name,
        seeds: seeds.0.clone(),
        panels,
    })
}

fn one_cache(turns: usize, seeds: &Seeds) -> anyhow::Result<Panel> {
    let trace = |seed: &u64| experiment::turns(Setting::Wildchat, *seed, turns);
    let traces: Vec<Vec<(Turn, Future)>> = seeds.0.iter().map(trace).collect::<Result<_, _>>()?;
    let play = |spec: &PolicySpec, weight| {
        let samples = pool::map(&traces, |trace| {
            let report = experiment::report(Setting::Wildchat, trace, spec, CAPACITY, XI_MS);
            (report.p50_ms, report.p95_ms)
        });
        Point::of(weight, &samples)
    };
    let et_lru = |decay_per_s: Option<f64>| {
        let spec = |epsilon| {
            PolicySpec::EtLru(EtLruOptions {
                epsilon,
                decay_per_s,
                ..EtLruOptions::default()
            })
        };
        let mu = decay_per_s.map_or("learned".to_owned(), |per_s| format!("{per_s}/s"));
        let points = EPSILONS.map(|epsilon| play(&spec(epsilon), epsilon));
        (format!("μ {mu}"), points.to_vec())
    };
    Ok(Panel {
        title: "One cache: ET-LRU by ε".to_owned(),
        weight: ("ε", EtLruOptions::default().epsilon),
        single: [("LRU", PolicySpec::Lru), ("T-LRU", PolicySpec::TLru)]
            .map(|(name, spec)| (name, play(&spec, 0.0))),
        curves: DECAYS.map(et_lru).to_vec(),
    })
}

fn fleet(workload: &Workload, block_tokens: u32, load: f64, seeds: &Seeds) -> Panel {
    let play = |cache, mu: f64| {
        let samples = pool::map(&seeds.0, |&seed| {
            let capacity = Tokens(BLOCKS * u64::from(block_tokens));
            let mut config = FleetConfig::uniform(WORKERS, COST, capacity);
            config.settings = Settings {
                policy: PolicyName::Tail,
                ..Settings::default()
            };
            (config.cache, config.mu) = (cache, mu);
            config.target.ttft = OBJECTIVE;
            config.pace = Pace::Load(load);
            config.seed = seed;
            let report = fleet::run(workload, &config);
            (report.p50_ms, report.p95_ms)
        });
        Point::of(mu, &samples)
    };
    let tail = MUS.map(|mu| play(CacheRule::Tail, mu));
    Panel {
        title: format!("Fleet at load {load}: queue-aware T-LRU by μ"),
        weight: ("μ", MU),
        single: [("LRU", CacheRule::Lru), ("T-LRU", CacheRule::TLru)]
            .map(|(name, cache)| (name, play(cache, MU))),
        curves: vec![(String::new(), tail.to_vec())],
    }
}

pub(super) fn markdown(report: &Report) -> String {
    let mut text = format!(
        "Means over seeds {:?}; fleet on {}.\n",
        report.seeds, report.trace
    );
    for panel in &report.panels {
        let (name, _) = panel.weight;
        text += &format!(
            "\n{}\n\n| | {name} | p50 ms | p95 ms |\n|---|---:|---:|---:|\n",
            panel.title
        );
        for (policy, point) in &panel.single {
            text += &format!("| {policy} | – | {:.1} | {:.1} |\n", point.p50_ms, point.p95_ms);
        }
        for (curve, points) in &panel.curves {
            for point in points {
                let Point {
                    weight,
                    p50_ms,
                    p95_ms,
                } = point;
                text += &format!("| {curve} | {weight} | {p50_ms:.1} | {p95_ms:.1} |\n");
            }
        }
    }
    text
}

/// Draws the panels side by side. Fails if the drawing library does.
pub(super) fn svg(report: &Report) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (1200, 420)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        let areas = root.split_evenly((1, report.panels.len()));
        for (panel, area) in report.panels.iter().zip(&areas) {
            draw(area, panel).map_err(|error| anyhow!("{error}"))?;
        }
        root.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(text)
}

/// Returns the range of the points, wider by a tenth below and, for the names, by a fifth above.
fn range(panel: &Panel, of: fn(&Point) -> f64) -> std::ops::Range<f64> {
    let points = || {
        let curves = panel.curves.iter().flat_map(|(_, points)| points);
        curves.chain(panel.single.iter().map(|(_, point)| point)).map(of)
    };
    let (low, high) = (
        points().fold(f64::INFINITY, f64::min),
        points().fold(0.0, f64::max),
    );
    let room = ((high - low) / 10.0).max(1.0);
    low - room..high + 2.0 * room
}

fn draw<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    panel: &Panel,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(
            range(panel, |point| point.p50_ms),
            range(panel, |point| point.p95_ms),
        )?;
    chart
        .configure_mesh()
        .x_desc("p50 of the time to first token (ms)")
        .y_desc("p95 (ms)")
        .light_line_style(WHITE)
        .x_labels(6)
        .x_label_formatter(&|ms| format!("{ms:.0}"))
        .y_label_formatter(&|ms| format!("{ms:.0}"))
        .draw()?;
    let place = |point: &Point| (point.p50_ms, point.p95_ms);
    let dot = |point: &Point, colour: RGBColor, name: String, by: (i32, i32)| {
        let text = Text::new(name, by, ("sans-serif", 14));
        EmptyElement::at(place(point)) + Circle::new((0, 0), 4, colour.filled()) + text
    };
    let single = panel.single.iter();
    chart.draw_series(single.map(|(name, point)| dot(point, BLACK, (*name).to_owned(), (8, -6))))?;
    for (at, (name, points)) in panel.curves.iter().enumerate() {
        let colour = COLOURS[2 + at % 4];
        let line = LineSeries::new(points.iter().map(place), colour.stroke_width(2));
        let drawn = chart.draw_series(line)?;
        if !name.is_empty() {
            drawn
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        // The first curve's weights are written; the others have the same ones.
        let name = |point: &Point| {
            if at == 0 {
                point.weight.to_string()
            } else {
                String::new()
            }
        };
        chart.draw_series(
            points
                .iter()
                .map(|point| dot(point, colour, name(point), (-14, 7))),
        )?;
        let default = points
            .iter()
            .filter(|point| at == 0 && point.weight == panel.weight.1);
        chart.draw_series(default.map(|point| Circle::new(place(point), 8, colour)))?;
    }
    if panel.curves.len() > 1 {
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .position(SeriesLabelPosition::LowerLeft)
            .draw()?;
    }
    Ok(())
}
