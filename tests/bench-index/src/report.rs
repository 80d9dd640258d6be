//! A table to read, or JSON lines to compare.

use std::fmt::Write;

use crate::clock::Spent;
use crate::promises::Promise;

pub const FRESH: &str = "bytes_per_entry";
pub const WORN: &str = "bytes_per_entry_after_8_turnovers";
pub const STORES: &str = "apply_ns_per_block_stores";
pub const STORES_CPU: &str = "apply_cpu_ns_per_block_stores";
pub const CHURN_CPU: &str = "apply_cpu_ns_per_block_stores_and_removals";
pub const REMOVALS_CPU: &str = "apply_cpu_ns_per_block_removals";
pub const CHURN: &str = "apply_ns_per_block_stores_and_removals";
pub const REMOVALS: &str = "apply_ns_per_block_removals";
pub const REMOVE_WORKER: &str = "remove_worker_ms";
pub const REMOVE_WORKER_WORST: &str = "remove_worker_ms_worst";
pub const RECLAIM: &str = "left_to_later_writes_cpu_ms";
/// Marks the cases that are asked again after the turnovers.
pub const AFTER: &str = " after 8 turnovers";

#[derive(Default)]
pub struct Report {
    pub promises: Vec<Promise>,
    /// Questions to which the structures gave different answers.
    pub disagreements: u64,
    lookups: Vec<(&'static str, String, f64, f64)>,
    figures: Vec<(&'static str, &'static str, f64)>,
    notes: Vec<String>,
}

impl Report {
    pub fn lookup(&mut self, structure: &'static str, case: &str, p50: f64, p99: f64) {
        self.lookups.push((structure, case.to_owned(), p50, p99));
    }

    pub fn figure(&mut self, structure: &'static str, what: &'static str, value: f64) {
        self.figures.push((structure, what, value));
    }

    pub fn memory(&mut self, structure: &'static str, what: &'static str, bytes: u64, entries: u64) {
        self.figure(structure, what, bytes as f64 / entries as f64);
    }

    /// What a block took, by the wall and of processors.
    pub fn rate(&mut self, structure: &'static str, what: [&'static str; 2], spent: Spent, blocks: u64) {
        for (what, nanos) in what.into_iter().zip([spent.wall, spent.processor]) {
            self.figure(structure, what, nanos as f64 / blocks as f64);
        }
    }

    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub fn print(&self) {
        let text = if std::env::var("JSON").is_ok_and(|json| json == "1") { self.json() } else { self.table() };
        print!("{text}");
    }

    /// A figure of ours, which comes first.
    pub fn ours(&self, figure: &str) -> f64 {
        self.figures.iter().find(|(_, what, _)| *what == figure).map_or(f64::NAN, |(.., value)| *value)
    }

    /// Our p50 to the lowest p50 of the others, and our p99 to the lowest p99.
    pub fn ratios(&self, case: &str) -> (f64, f64) {
        let row: Vec<_> = self.lookups.iter().filter(|(_, of, ..)| of == case).collect();
        let Some(((_, _, p50, p99), peers)) = row.split_first() else { return (f64::NAN, f64::NAN) };
        let lowest = |of: fn(&&(&'static str, String, f64, f64)) -> f64| peers.iter().map(of).fold(f64::INFINITY, f64::min);
        (p50 / lowest(|row| row.2), p99 / lowest(|row| row.3))
    }

    fn json(&self) -> String {
        let mut text = String::new();
        for (structure, case, p50, p99) in &self.lookups {
            let _ = writeln!(
                text,
                r#"{{"structure":"{structure}","case":"{case}","p50_ns":{p50:.1},"p99_ns":{p99:.1}}}"#
            );
        }
        for structure in self.structures() {
            let _ = write!(text, r#"{{"structure":"{structure}""#);
            for (_, what, value) in self.figures.iter().filter(|(of, ..)| *of == structure) {
                let _ = write!(text, r#","{what}":{value:.3}"#);
            }
            let _ = writeln!(text, "}}");
        }
        for promise in &self.promises {
            let Promise { what, measured, at_most } = promise;
            let _ = writeln!(
                text,
                r#"{{"promise":"{what}","measured":{measured:.3},"at_most":{at_most},"kept":{}}}"#,
                promise.kept()
            );
        }
        text
    }

    fn structures(&self) -> Vec<&'static str> {
        let mut structures: Vec<&'static str> = Vec::new();
        for (structure, ..) in &self.figures {
            if !structures.contains(structure) {
                structures.push(structure);
            }
        }
        structures
    }

    fn table(&self) -> String {
        let structures = self.structures();
        let mut text = format!("{:44}", "lookup, ns p50/p99");
        structures.iter().for_each(|structure| { let _ = write!(text, "{structure:>26}"); });
        let _ = writeln!(text, "{:>24}", "p50, p99 to the lowest");
        let mut cases: Vec<&str> = Vec::new();
        for (_, case, ..) in &self.lookups {
            if !cases.contains(&case.as_str()) {
                cases.push(case);
            }
        }
        for case in cases {
            let _ = write!(text, "{case:44}");
            let row = self.lookups.iter().filter(|(_, of, ..)| of == case);
            row.for_each(|(_, _, p50, p99)| { let _ = write!(text, "{:>26}", format!("{p50:.0}/{p99:.0}")); });
            let (p50, p99) = self.ratios(case);
            let _ = writeln!(text, "{:>24}", format!("{p50:.2}, {p99:.2}"));
        }
        let _ = writeln!(text);
        let mut figures: Vec<&str> = Vec::new();
        for (_, what, _) in &self.figures {
            if !figures.contains(what) {
                figures.push(what);
            }
        }
        for figure in figures {
            let _ = write!(text, "{figure:44}");
            for structure in &structures {
                let value = self.figures.iter().find(|(of, what, _)| of == structure && *what == figure);
                let cell = value.map_or("-".to_owned(), |(.., value)| format!("{value:.2}"));
                let _ = write!(text, "{cell:>26}");
            }
            let _ = writeln!(text);
        }
        let _ = writeln!(text);
        for promise in &self.promises {
            let verdict = if promise.kept() { "ok    " } else { "MISSED" };
            let _ = writeln!(text, "{verdict} {:64} {:>9.3}, at most {}", promise.what, promise.measured, promise.at_most);
        }
        self.notes.iter().for_each(|note| { let _ = writeln!(text, "note: {note}"); });
        text
    }
}
