//! p95 by policy and cell: a dot plot on a logarithmic axis, with the effects of the weights below.
//!
//! Every policy has a lane of its own in each row, so that dots do not overlap, and a line from the minimum to the
//! maximum over seeds. Written without a plotting library, so that the colours can follow the reader's light or dark
//! theme; the grey of the text is readable on both where themes are not supported.

mod weights;

use std::fmt::Write as _;

use super::grid::Contender;
use super::{CellReport, Report, Spread};

const WIDTH: f64 = 880.0;
const LEFT: f64 = 196.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 104.0;
const LANE: f64 = 8.5;
const ROW_GAP: f64 = 12.0;
const GROUP_GAP: f64 = 22.0;

const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:13px;fill:#767676}\
.title{font-size:16px;font-weight:600}.group{font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}\
.grid{stroke:#767676;stroke-opacity:.25}.rule{stroke:#767676;stroke-opacity:.5}\
.range{stroke-width:2;stroke-opacity:.55}\
.tail{fill:#d55e00;stroke:#d55e00}.tail_priority{fill:#7a4fbf;stroke:#7a4fbf}.least_ttft{fill:#2f86c9;stroke:#2f86c9}\
.cache_aware_index{fill:#0a9b74;stroke:#0a9b74}.cache_aware_tree{fill:#c56a9c;stroke:#c56a9c}\
.round_robin{fill:#8a8a8a;stroke:#8a8a8a}\
@media(prefers-color-scheme:light){text{fill:#333}}@media(prefers-color-scheme:dark){text{fill:#ccc}}";

pub(in super::super) fn svg(report: &Report) -> String {
    let axis = Axis::of(report);
    let mut rows = String::new();
    let mut y = TOP;
    let mut fleet = None;
    for cell in &report.cells {
        if fleet != Some((cell.cell.workers, cell.cell.blocks)) {
            fleet = Some((cell.cell.workers, cell.cell.blocks));
            y += GROUP_GAP;
            group(&mut rows, cell, y);
        }
        row(&mut rows, cell, &axis, y);
        y += LANE * Contender::DRAWN.len() as f64 + ROW_GAP;
    }
    let axis_at = y;
    let mut panel = String::new();
    let y = weights::draw(&mut panel, report, y + 60.0);
    let height = y + 36.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>95th percentile of time to first token by routing policy and cell, and what the weights do\
         </title>\n<style>{STYLE}</style>\n"
    );
    head(&mut text, report);
    axis.draw(&mut text, axis_at);
    text += &rows;
    text += &panel;
    text += "</svg>\n";
    text
}

fn head(text: &mut String, report: &Report) {
    let name = std::path::Path::new(&report.trace).file_name();
    let name = name.map_or(report.trace.clone(), |name| name.to_string_lossy().into_owned());
    let _ = writeln!(
        text,
        "<text class=\"title\" x=\"16\" y=\"28\">p95 time to first token, {} turns of {}</text>",
        report.turns,
        escape(&name),
    );
    let (mut x, mut y) = (16.0, 52.0);
    for contender in Contender::DRAWN {
        // Letters of the widest common font are a little more than half as wide as they are high.
        let wide = 16.0 + 7.4 * contender.label().len() as f64;
        if x + wide > WIDTH - RIGHT {
            (x, y) = (16.0, y + 22.0);
        }
        dot(text, contender, x + 5.0, y);
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\">{}</text>",
            x + 16.0,
            y + 4.5,
            contender.label()
        );
        x += wide + 22.0;
    }
}

fn group(text: &mut String, cell: &CellReport, y: f64) {
    let (thousands, rest) = (cell.cell.blocks / 1000, cell.cell.blocks % 1000);
    let _ = writeln!(
        text,
        "<line class=\"rule\" x1=\"16\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n\
         <text class=\"group\" x=\"16\" y=\"{}\">{} workers</text><text x=\"16\" y=\"{}\">{thousands},{rest:03} blocks each</text>",
        WIDTH - RIGHT,
        y - 10.0,
        y - 10.0,
        y + 12.0,
        cell.cell.workers,
        y + 30.0,
    );
}

fn row(text: &mut String, cell: &CellReport, axis: &Axis, y: f64) {
    let lanes = LANE * (Contender::DRAWN.len() - 1) as f64;
    let _ = writeln!(
        text,
        "<text class=\"end\" x=\"{}\" y=\"{}\">load {}</text>",
        LEFT - 14.0,
        y + lanes / 2.0 + 4.5,
        cell.cell.load
    );
    for (lane, contender) in Contender::DRAWN.into_iter().enumerate() {
        let y = y + LANE * lane as f64;
        let figures = cell.contenders.get(contender.name()).into_iter().flatten();
        let p95 = Spread::of(figures.map(|figures| figures.p95_ms).collect());
        let _ = writeln!(
            text,
            "<line class=\"range {}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>",
            contender.name(),
            axis.x(p95.least),
            axis.x(p95.most)
        );
        dot(text, contender, axis.x(p95.median), y);
    }
}

fn dot(text: &mut String, contender: Contender, x: f64, y: f64) {
    let class = contender.name();
    let radius = if contender == Contender::Tail { 4.5 } else { 3.5 };
    let _ = match contender {
        Contender::CacheAwareTree | Contender::CacheAwareIndex => writeln!(
            text,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\"/>",
            x - 3.2,
            y - 3.2
        ),
        _ => writeln!(
            text,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>"
        ),
    };
}

struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(report: &Report) -> Self {
        let of_cell = |cell: &CellReport| -> Vec<f64> {
            let drawn = Contender::DRAWN.into_iter();
            let figures = drawn.filter_map(|contender| cell.contenders.get(contender.name()));
            figures.flatten().map(|figures| figures.p95_ms.max(1.0)).collect()
        };
        let all: Vec<f64> = report.cells.iter().flat_map(of_cell).collect();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min).clamp(1.0, 1e9);
        let high = all.iter().copied().fold(low, f64::max).max(low * 2.0);
        Self {
            low: low / 1.15,
            high: high * 1.15,
        }
    }

    fn x(&self, ms: f64) -> f64 {
        let share = (ms.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 4.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        powers
            .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
            .filter(|tick| *tick >= self.low && *tick <= self.high)
            .collect()
    }

    fn draw(&self, text: &mut String, bottom: f64) {
        for tick in self.ticks() {
            let x = self.x(tick);
            let label = if tick < 1000.0 {
                format!("{tick:.0} ms")
            } else {
                format!("{:.0} s", tick / 1000.0)
            };
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom}\"/>\n\
                 <text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{label}</text>",
                TOP + GROUP_GAP - 10.0,
                bottom + 18.0
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_lie_on_the_axis_and_keep_their_distance() {
        for (low, high) in [(90.0, 40_000.0), (1.0, 2.0), (3.0, 1e6)] {
            let axis = Axis { low, high };
            let places: Vec<f64> = axis.ticks().iter().map(|tick| axis.x(*tick)).collect();
            assert!(places.iter().all(|x| (LEFT..=WIDTH - RIGHT).contains(x)));
            assert!(
                places.windows(2).all(|pair| pair[1] - pair[0] > 45.0),
                "{places:?}"
            );
        }
    }

    #[test]
    fn a_name_cannot_break_the_drawing() {
        assert_eq!(escape("a<b&c"), "a&lt;b&amp;c");
    }
}
