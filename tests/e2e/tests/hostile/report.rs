//! The figures of a scenario, with their bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::honest;
use crate::livez::Probed;
use crate::stage::{Sample, Stage};
use tailroute_e2e::environment::is_strict;

/// Longest response time of `/livez`.
const LIVEZ_WITHIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Figure {
    name: String,
    asked: String,
    measured: String,
    holds: bool,
}

/// The figures of one scenario.
#[derive(Debug)]
pub(crate) struct Report {
    scenario: &'static str,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(scenario: &'static str) -> Self {
        Self {
            scenario,
            figures: Vec::new(),
        }
    }

    /// Adds a figure, and whether it is within its bound.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        asked: impl Into<String>,
        measured: impl Into<String>,
        holds: bool,
    ) {
        self.figures.push(Figure {
            name: name.into(),
            asked: asked.into(),
            measured: measured.into(),
            holds,
        });
    }

    /// Adds a figure of forbidden events: their number, and the most frequent ones.
    pub(crate) fn none(&mut self, name: impl Into<String>, found: &[String]) {
        let mut often: BTreeMap<&str, usize> = BTreeMap::new();
        for what in found {
            *often.entry(what).or_default() += 1;
        }
        let mut often: Vec<_> = often.into_iter().collect();
        often.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let often = often.iter().take(3);
        let often: Vec<_> = often
            .map(|(what, times)| format!("{times} x {}", shortened(what)))
            .collect();
        let measured = match found.len() {
            0 => "0".to_owned(),
            count => format!("{count}: {}", often.join("; ")),
        };
        self.add(name, "0", measured, found.is_empty());
    }

    /// Adds the outcome of honest clients.
    pub(crate) fn honest(&mut self, tally: &honest::Tally) {
        let name = format!("errors of {} honest streams", tally.streams);
        self.none(name, &tally.errors);
        let complete = tally.complete;
        self.add(
            "honest answers, complete",
            "> 0",
            complete.to_string(),
            complete > 0,
        );
    }

    /// Adds the response times of `/livez`. The time is checked only on a quiet machine; that there is a response
    /// always is.
    pub(crate) fn livez(&mut self, probed: &Probed) {
        self.none("/livez without an answer", &probed.failed);
        let worst = probed.slowest;
        self.add(
            format!("slowest of {} /livez", probed.answered),
            format!(
                "<= {} ms{}",
                LIVEZ_WITHIN.as_millis(),
                if is_strict() { "" } else { " if STRICT" }
            ),
            format!("{:.1} ms", worst.as_secs_f64() * 1e3),
            worst <= LIVEZ_WITHIN || !is_strict(),
        );
    }

    /// Adds the router's peak memory, and what it holds afterwards.
    pub(crate) fn held(&mut self, stage: &Stage, at_rest: Sample, after: Sample) {
        let (peak, budget) = (after.usage.peak_kib, stage.budget_kib());
        self.add(
            "peak memory",
            format!("<= {} MiB", budget / 1024),
            format!("{} MiB ({} at rest)", peak / 1024, at_rest.usage.rss_kib / 1024),
            peak <= budget,
        );
        let fds = stage.most_fds(at_rest);
        self.add(
            "descriptors afterwards",
            format!("<= {fds}"),
            after.usage.fds.to_string(),
            after.usage.fds <= fds,
        );
        let tasks = stage.most_tasks(at_rest);
        self.add(
            "tasks afterwards",
            format!("<= {tasks}"),
            after.tasks.to_string(),
            after.tasks <= tasks,
        );
        for (name, count) in [("in flight", after.in_flight), ("in the queue", after.queued)] {
            self.add(format!("{name} afterwards"), "0", count.to_string(), count == 0.0);
        }
    }

    /// Prints all figures.
    ///
    /// # Panics
    /// If one of them is not within its bound.
    pub(crate) fn close(self) {
        println!("\n{}", self.scenario);
        println!("  {:<58} {:>16}   measured", "figure", "asked");
        for figure in &self.figures {
            let mark = if figure.holds { " " } else { "!" };
            println!(
                "{mark} {:<58} {:>16}   {}",
                figure.name, figure.asked, figure.measured
            );
        }
        let missed: Vec<&str> = self
            .figures
            .iter()
            .filter(|figure| !figure.holds)
            .map(|figure| figure.name.as_str())
            .collect();
        assert!(missed.is_empty(), "{}: not as asked: {missed:?}", self.scenario);
    }
}

fn shortened(text: &str) -> String {
    const MOST: usize = 160;
    let text = text.replace(['\r', '\n'], " ");
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
