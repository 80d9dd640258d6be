//! A table to read, or JSON lines to compare.

use std::fmt::Write;

#[derive(Default)]
pub struct Report {
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

    pub fn rate(&mut self, structure: &'static str, what: &'static str, nanos: u64, blocks: u64) {
        self.figure(structure, what, nanos as f64 / blocks as f64);
    }

    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub fn print(&self) {
        let text = if std::env::var("JSON").is_ok_and(|json| json == "1") { self.json() } else { self.table() };
        print!("{text}");
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
                let key = what.replace([' ', '(', ')'], "_").replace("__", "_");
                let _ = write!(text, r#","{}":{value:.3}"#, key.trim_end_matches('_'));
            }
            let _ = writeln!(text, "}}");
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
        let _ = writeln!(text, "{:>16}", "p50 to the best");
        let mut cases: Vec<&str> = self.lookups.iter().map(|(_, case, ..)| case.as_str()).collect();
        cases.dedup();
        cases.sort_by_key(|case| self.lookups.iter().position(|(_, of, ..)| of == case));
        cases.dedup();
        for case in cases {
            let _ = write!(text, "{case:44}");
            let row: Vec<_> = self.lookups.iter().filter(|(_, of, ..)| of == case).collect();
            row.iter().for_each(|(_, _, p50, p99)| { let _ = write!(text, "{:>26}", format!("{p50:.0}/{p99:.0}")); });
            let best = row[1..].iter().map(|(_, _, p50, _)| *p50).fold(f64::INFINITY, f64::min);
            let _ = writeln!(text, "{:>16.2}", row[0].2 / best);
        }
        let mut figures: Vec<&str> = Vec::new();
        for (_, what, _) in &self.figures {
            if !figures.contains(what) {
                figures.push(what);
            }
        }
        for figure in figures {
            let _ = write!(text, "{figure:44}");
            self.figures.iter().filter(|(_, what, _)| *what == figure).for_each(|(_, _, value)| {
                let _ = write!(text, "{value:>26.2}");
            });
            let _ = writeln!(text);
        }
        self.notes.iter().for_each(|note| { let _ = writeln!(text, "note: {note}"); });
        text
    }
}
