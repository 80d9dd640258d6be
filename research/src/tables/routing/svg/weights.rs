//! The lower panel: the effect of each weight on p95 and p99.

use std::fmt::Write as _;

use super::{LEFT, RIGHT, Report, Spread, WIDTH};

const LANE: f64 = 9.0;
const ROW: f64 = 2.0 * LANE + 7.0;
const HEAD: f64 = 76.0;

pub(super) fn draw(text: &mut String, report: &Report, top: f64) -> f64 {
    let axis = Axis::of(report);
    let first = top + HEAD;
    let bottom = first + ROW * report.weights.len() as f64;
    head(text, top);
    for per_cent in axis.ticks() {
        let x = axis.x(per_cent);
        let class = if per_cent == 0.0 { "rule" } else { "grid" };
        let _ = writeln!(
            text,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom}\"/>\n\
             <text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{per_cent:+.0} %</text>",
            first - 12.0,
            bottom + 18.0
        );
    }
    for (row, weight) in report.weights.iter().enumerate() {
        let y = first + ROW * row as f64;
        let _ = writeln!(
            text,
            "<text class=\"end\" x=\"{}\" y=\"{}\">{} {}</text>",
            LEFT - 14.0,
            y + LANE / 2.0 + 4.5,
            weight.weight,
            weight.value
        );
        for (lane, class, spread) in [
            (0.0, "tail", &weight.change.p95),
            (1.0, "least_ttft", &weight.change.p99),
        ] {
            bar(text, &axis, class, spread, y + lane * LANE);
        }
    }
    bottom
}

fn head(text: &mut String, top: f64) {
    let _ = writeln!(
        text,
        "<text class=\"title\" x=\"16\" y=\"{}\">tail with another value of one weight, change against the defaults</text>",
        top + 16.0
    );
    for (class, label, x) in [("tail", "p95", 21.0), ("least_ttft", "p99", 90.0)] {
        let y = top + 41.0;
        let _ = writeln!(
            text,
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"3.5\"/><text x=\"{}\" y=\"{}\">{label}</text>",
            x + 11.0,
            y + 4.5
        );
    }
}

fn bar(text: &mut String, axis: &Axis, class: &str, spread: &Spread, y: f64) {
    let _ = writeln!(
        text,
        "<line class=\"range {class}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>\
         <circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y}\" r=\"3.5\"/>",
        axis.x(spread.least),
        axis.x(spread.most),
        axis.x(spread.median)
    );
}

struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(report: &Report) -> Self {
        let spreads = report
            .weights
            .iter()
            .flat_map(|weight| [weight.change.p95, weight.change.p99]);
        let ends = spreads.flat_map(|spread| [spread.least, spread.most]);
        let (low, high) = ends
            .filter(|end| end.is_finite())
            .fold((-1.0f64, 1.0f64), |(low, high), end| {
                (low.min(end), high.max(end))
            });
        Self {
            low: low * 1.05,
            high: high * 1.05,
        }
    }

    fn x(&self, per_cent: f64) -> f64 {
        let share = (per_cent - self.low) / (self.high - self.low);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> Vec<f64> {
        let room = (self.high - self.low) / 10.0;
        let step = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
            .into_iter()
            .find(|step| *step >= room)
            .unwrap_or(room);
        let from = (self.low / step).ceil() as i64;
        let to = (self.high / step).floor() as i64;
        (from..=to).take(12).map(|tick| tick as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_hold_nought_and_lie_on_the_axis() {
        for (low, high) in [(-1.05, 1.05), (-12.0, 23.0), (-60.0, 400.0)] {
            let axis = Axis { low, high };
            let ticks = axis.ticks();
            assert!(ticks.contains(&0.0) && ticks.len() <= 12, "{ticks:?}");
            assert!(ticks.iter().all(|tick| (low..=high).contains(tick)));
        }
    }
}
