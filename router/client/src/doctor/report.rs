//! The report: a table of workers and checks, then each finding with its action.

use std::collections::BTreeSet;

use policy::text::printable;
use serde::Serialize;

use super::verdict::{Finding, Status, counted};
use super::{CHECKS, Scope};

const WIDTH: usize = 100;
const NAME: usize = 16;
/// Checks of the router in a row of the table.
const MARKS: usize = 5;
/// Workers up to which all are rows of the table; beyond, only those with a finding.
const ROWS: usize = 20;
const NAMED: usize = 4;

/// The findings about a router and its fleet.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    router: String,
    workers: Vec<String>,
    problems: usize,
    warnings: usize,
    unknown: usize,
    /// The findings of all checks, by check and worker.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(router: String, workers: Vec<String>, findings: Vec<Finding>) -> Self {
        let count = |status| findings.iter().filter(|finding| finding.status == status).count();
        Self {
            router,
            workers,
            problems: count(Status::Problem),
            warnings: count(Status::Warning),
            unknown: count(Status::Unknown),
            findings,
        }
    }

    /// Returns whether there is no problem, and if `strict` no warning.
    pub fn is_good(&self, strict: bool) -> bool {
        self.problems == 0 && (!strict || self.warnings == 0)
    }

    /// Returns the report for a terminal of 100 columns.
    pub fn text(&self, colour: bool) -> String {
        let paint = Paint { colour };
        let mut lines = vec![self.summary(), String::new()];
        self.table(&mut lines, paint);
        for status in [Status::Problem, Status::Warning, Status::Unknown, Status::Ok] {
            self.list(&mut lines, paint, status);
        }
        lines.join("\n")
    }

    fn summary(&self) -> String {
        let mut text = format!("{}: {}", self.router, counted(self.workers.len(), "worker"));
        let counts = [(self.problems, "problem"), (self.warnings, "warning")];
        for (count, noun) in counts {
            text.push_str(&format!(", {}", counted(count, noun)));
        }
        if self.unknown > 0 {
            text.push_str(&format!(", {} unknown", self.unknown));
        }
        text
    }

    fn table(&self, lines: &mut Vec<String>, paint: Paint) {
        let columns: Vec<_> = CHECKS
            .iter()
            .filter(|check| matches!(check.scope, Scope::Worker(_)))
            .collect();
        let is_row = |worker: &&String| self.workers.len() <= ROWS || self.worst(worker) > Status::Ok;
        let rows: Vec<&String> = self.workers.iter().filter(is_row).take(ROWS).collect();
        if !rows.is_empty() {
            let heads: Vec<&str> = columns.iter().map(|check| check.heading).collect();
            lines.push(format!("{:<NAME$} {}", "worker", heads.join(" ")));
        }
        for worker in &rows {
            let mut line = format!("{:<NAME$}", cut(worker, NAME));
            for check in &columns {
                let status = self
                    .of(check.name, Some(worker))
                    .map_or(Status::Unknown, |found| found.status);
                line.push_str(&format!(
                    " {}{}",
                    paint.mark(status),
                    " ".repeat(check.heading.len() - 1)
                ));
            }
            lines.push(line.trim_end().to_owned());
        }
        if rows.len() < self.workers.len() {
            lines.push(format!(
                "{} not shown",
                counted(self.workers.len() - rows.len(), "worker")
            ));
        }
        let of_router = CHECKS
            .iter()
            .filter(|check| matches!(check.scope, Scope::Router(_)));
        let marks = of_router.filter_map(|check| {
            let found = self.of(check.name, None)?;
            Some(format!("{} {}", paint.mark(found.status), check.name))
        });
        let marks: Vec<String> = marks.collect();
        for (row, marks) in marks.chunks(MARKS).enumerate() {
            let name = if row == 0 { "router" } else { "" };
            lines.push(format!("{name:<NAME$} {}", marks.join("  ")));
        }
    }

    fn of(&self, check: &str, worker: Option<&String>) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|found| found.check == check && found.worker.as_ref() == worker)
    }

    fn worst(&self, worker: &String) -> Status {
        let own = self
            .findings
            .iter()
            .filter(|found| found.worker.as_ref() == Some(worker));
        own.map(|found| found.status).max().unwrap_or(Status::Ok)
    }

    fn list(&self, lines: &mut Vec<String>, paint: Paint, status: Status) {
        for group in self.groups(status) {
            lines.push(String::new());
            let mark = if status == Status::Ok {
                paint.note()
            } else {
                paint.mark(status)
            };
            let text = group.text();
            for (at, line) in wrapped(&text, WIDTH - 2).into_iter().enumerate() {
                lines.push(if at == 0 {
                    format!("{mark} {line}")
                } else {
                    format!("  {line}")
                });
            }
            for (at, line) in wrapped(group.first.action.as_deref().unwrap_or_default(), WIDTH - 4)
                .into_iter()
                .enumerate()
            {
                lines.push(format!("  {} {line}", if at == 0 { "→" } else { " " }));
            }
        }
    }

    /// Groups findings of several workers with the same action, and unknown ones of several checks with the same cause.
    /// Of those that are well, only notes are listed.
    fn groups(&self, status: Status) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let listed = |found: &&Finding| found.status == status && (status != Status::Ok || found.is_note());
        for finding in self.findings.iter().filter(listed) {
            match groups.iter_mut().find(|group| group.takes(finding)) {
                Some(group) => group.add(finding),
                None => groups.push(Group::new(finding)),
            }
        }
        groups
    }
}

/// Findings that are listed as one.
struct Group<'a> {
    first: &'a Finding,
    checks: Vec<&'static str>,
    workers: BTreeSet<&'a str>,
    /// Whether all findings have the same text.
    is_same: bool,
}

impl<'a> Group<'a> {
    fn new(first: &'a Finding) -> Self {
        Self {
            first,
            checks: vec![first.check],
            workers: first.worker.as_deref().into_iter().collect(),
            is_same: true,
        }
    }

    fn takes(&self, finding: &Finding) -> bool {
        let same_check = self.first.check == finding.check && self.generic_action(finding);
        let same_cause = finding.status == Status::Unknown && self.first.found == finding.found;
        self.first.worker.is_some() == finding.worker.is_some() && (same_check || same_cause)
    }

    /// Returns whether both suggest the same action, apart from the worker's name.
    fn generic_action(&self, finding: &Finding) -> bool {
        let generic = |finding: &Finding| {
            let action = finding.action.clone().unwrap_or_default();
            let worker = finding.worker.clone().unwrap_or_default();
            if worker.is_empty() {
                action
            } else {
                action.replace(&worker, "NAME")
            }
        };
        generic(self.first) == generic(finding)
    }

    fn add(&mut self, finding: &'a Finding) {
        self.is_same &= self.first.found == finding.found;
        if !self.checks.contains(&finding.check) {
            self.checks.push(finding.check);
        }
        self.workers.extend(finding.worker.as_deref());
    }

    fn text(&self) -> String {
        let checks = self.checks.join(", ");
        let mut names: Vec<&str> = self.workers.iter().take(NAMED).copied().collect();
        let more = format!("{} more", self.workers.len() - names.len());
        if self.workers.len() > NAMED {
            names.push(&more);
        }
        let found = match (self.is_same, &self.first.worker) {
            (false, Some(worker)) => format!("{worker}: {}", self.first.found),
            _ => self.first.found.clone(),
        };
        match names.is_empty() {
            true => format!("{checks}: {found}."),
            false => format!("{checks} ({}): {found}.", names.join(", ")),
        }
    }
}

#[derive(Clone, Copy)]
struct Paint {
    colour: bool,
}

impl Paint {
    fn mark(self, status: Status) -> String {
        match status {
            Status::Ok => self.paint("✓", 32),
            Status::Unknown => self.paint("?", 36),
            Status::Warning => self.paint("!", 33),
            Status::Problem => self.paint("✗", 31),
        }
    }

    fn note(self) -> String {
        self.paint("·", 36)
    }

    fn paint(self, mark: &str, code: u8) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{mark}\x1b[0m"),
            false => mark.to_owned(),
        }
    }
}

fn cut(name: &str, width: usize) -> String {
    let name = printable(name).into_owned();
    if name.chars().count() <= width {
        return name;
    }
    let mut name: String = name.chars().take(width - 1).collect();
    name.push('…');
    name
}

/// Breaks text between words; a word longer than the width has a line of its own. Escapes control characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let word = printable(word).into_owned();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}
