//! The tables as Markdown.

use std::fmt::Write as _;

use super::settle::Settled;
use super::{Cell, Report, Row};

/// Three tables: against the best fixed ξ, after α doubles, and after the traffic changes.
pub(in super::super) fn markdown(report: &Report) -> String {
    let seeds: Vec<_> = report.seeds.iter().map(u64::to_string).collect();
    let trace = report.trace.as_deref().unwrap_or("none: no trace was given");
    let mut text = format!(
        "One worker at {} of its capacity without a cache; trace {trace}; seeds {}, in this order.\n\n\
         ## TEL, adaptive ξ above the best fixed ξ in hindsight\n\n\
         | workload, cache | tokens | objective ms | LRU % | adaptive % | by seed % | late turns, LRU → adaptive % \
         | best scale | scale at the end |\n|---|---:|---:|---:|---:|---|---|---|---|\n",
        report.load,
        seeds.join(", "),
    );
    for cell in &report.cells {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:+.1} | {:+.1} | {} | {} | {} | {} |",
            name(cell),
            cell.setting.capacity_tokens,
            cell.setting.objective_ms,
            lru_above(cell),
            cell.above_best_percent,
            each(cell, |row| format!("{:+.1}", row.above_best_percent)),
            each(cell, |row| format!(
                "{:.1} → {:.1}",
                100.0 * row.lru.late_share,
                100.0 * row.adaptive.late_share
            )),
            each(cell, |row| format!("{:.1}", row.best_scale)),
            each(cell, |row| row.scale_at_end.to_string()),
        );
    }
    text += "\n## After α doubles half way, beside a twin that was as slow from the first turn\n\n\
             | workload, cache | settled after turns | excess of the first 200 above the twin's % | of all later % |\n\
             |---|---|---|---|\n";
    for cell in &report.cells {
        let of: Vec<_> = cell.rows.iter().map(|row| &row.doubled).collect();
        settled(&mut text, &name(cell), &of);
    }
    text += "\n## After the traffic changes half way, beside a twin that has known no other\n\n\
             | from, to, cache | settled after turns | excess of the first 200 above the twin's % | of all later % |\n\
             |---|---|---|---|\n";
    for shift in &report.shifts {
        let of: Vec<_> = shift.rows.iter().map(|row| &row.settled).collect();
        let name = format!("{}, {}, {}", shift.from, shift.to.workload, shift.cache);
        settled(&mut text, &name, &of);
    }
    text += "\n| aim | met |\n|---|---|\n";
    for aim in &report.aims {
        let _ = writeln!(text, "| {} | {} of {} |", aim.aim, aim.met, aim.of);
    }
    text
}

/// A row of how soon it settled, seed by seed.
fn settled(text: &mut String, name: &str, seeds: &[&Settled]) {
    let each = |of: &dyn Fn(&Settled) -> String| {
        let each: Vec<String> = seeds.iter().map(|settled| of(settled)).collect();
        each.join(", ")
    };
    let after = |settled: &Settled| {
        let turns = settled.settled_after;
        turns.map_or("never".to_owned(), |turns| turns.to_string())
    };
    let _ = writeln!(
        text,
        "| {name} | {} | {} | {} |",
        each(&after),
        each(&|settled| format!("{:+.1}", settled.first_above_percent)),
        each(&|settled| format!("{:+.1}", settled.later_above_percent)),
    );
}

fn name(cell: &Cell) -> String {
    format!("{}, {}", cell.setting.workload, cell.cache)
}

fn lru_above(cell: &Cell) -> f64 {
    let sum = |of: fn(&Row) -> f64| cell.rows.iter().map(of).sum::<f64>();
    super::above(sum(|row| row.lru.tel_ms), sum(|row| row.best_fixed.tel_ms))
}

fn each(cell: &Cell, of: impl Fn(&Row) -> String) -> String {
    cell.rows.iter().map(of).collect::<Vec<_>>().join(", ")
}
