//! Comparison of two plays of the same arrivals, turn by turn.

use std::collections::BTreeMap;

use policy::ids::WorkerId;
use policy::route::Settings;
use policy::stats::median;
use policy::units::Tokens;
use serde::Serialize;
use simulator::fleet::{FleetConfig, TurnRecord};

use super::check::Check;
use super::costs::{SimWorker, summary};
use super::figures::Figures;
use super::fleet::ReplayFleet;
use super::played::{Played, RetainedDecisions};
use super::verdict::{DecidingTerm, Scored, scored, verdict};
use simulator::trace_source::Trace;

/// Number of turns in the list of those that change most.
const CHANGES: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct ReplayReport {
    /// Number of counted turns: served in both plays, after the warm-up.
    pub(super) turns: usize,
    /// Number of turns that were not served in both plays.
    pub(super) unserved: u64,
    pub(super) workers: Vec<String>,
    pub(super) fleet: Vec<SimWorker>,
    pub(super) costs: String,
    /// The simulation beside the measurements, under the policy in force; absent without enough measured turns.
    pub(super) check: Option<Check>,
    pub(super) objective_ms: f64,
    pub(super) baseline: PlaySummary,
    pub(super) proposed: PlaySummary,
    /// Number of counted turns that went to another worker.
    pub(super) moved: usize,
    /// Number of counted turns whose TTFT became shorter.
    pub(super) better: usize,
    pub(super) worse: usize,
    pub(super) classes: Vec<ClassReport>,
    pub(super) changes: Vec<ChangedTurn>,
}

#[derive(Debug, Serialize)]
pub(super) struct PlaySummary {
    pub(super) settings: Settings,
    pub(super) utilisation_window_s: f64,
    pub(super) cache: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Share of the workers' time spent in prefill, including the warm-up.
    pub(super) utilisation: f64,
    /// Median of |predicted − actual| TTFT.
    pub(super) prediction_error_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ClassReport {
    pub(super) class: String,
    /// Objective of the class's turns; the median, where requests set their own.
    pub(super) objective_ms: f64,
    pub(super) turns: usize,
    pub(super) baseline: Figures,
    pub(super) proposed: Figures,
}

#[derive(Debug, Serialize)]
pub(super) struct ChangedTurn {
    /// Index in the capture, from 0.
    pub(super) turn: u32,
    pub(super) conversation: u64,
    pub(super) number: u32,
    pub(super) class: String,
    pub(super) change_ms: f64,
    /// Reason why the proposed settings chose their worker over the baseline's; for the same worker, the change there.
    pub(super) decided_by: DecidingTerm,
    pub(super) baseline: TurnResult,
    pub(super) proposed: TurnResult,
}

#[derive(Debug, Serialize)]
pub(super) struct TurnResult {
    pub(super) worker: String,
    pub(super) ttft_ms: f64,
    pub(super) predicted_ms: f64,
    pub(super) cached: Tokens,
    pub(super) uncached: Tokens,
    /// Terms of every worker when the turn was sent.
    pub(super) scores: Vec<Scored>,
}

fn pairs(played: &[Played; 2]) -> impl Iterator<Item = [TurnRecord; 2]> {
    let [before, after] = played;
    let both = before.records.iter().zip(&after.records).skip(before.warm_up);
    both.filter_map(|(before, after)| Some([(*before)?, (*after)?]))
}

fn change_ms([before, after]: &[TurnRecord; 2]) -> f64 {
    after.ttft_ms - before.ttft_ms
}

/// Returns the turns that change most, the largest change first, and of equal ones the earliest.
pub(super) fn largest(played: &[Played; 2]) -> Vec<[TurnRecord; 2]> {
    let mut changes: Vec<_> = pairs(played).filter(|pair| change_ms(pair) != 0.0).collect();
    changes.sort_by(|a, b| change_ms(b).abs().total_cmp(&change_ms(a).abs()));
    changes.truncate(CHANGES);
    changes
}

fn side(played: &Played, figures: Figures) -> PlaySummary {
    PlaySummary {
        settings: played.config.settings.clone(),
        utilisation_window_s: played.config.utilisation_window.0 / 1e3,
        cache: played.report.cache.clone(),
        figures,
        utilisation: played.report.utilisation,
        prediction_error_ms: played.report.prediction_error_ms,
    }
}

pub(super) fn report(
    trace: &Trace,
    fleet: &ReplayFleet,
    played: &[Played; 2],
    changes: &[[TurnRecord; 2]],
    kept: &[RetainedDecisions; 2],
    check: Option<Check>,
) -> ReplayReport {
    let mut all: [Vec<(TurnRecord, f64)>; 2] = Default::default();
    let mut by_class: BTreeMap<u16, [Vec<(TurnRecord, f64)>; 2]> = BTreeMap::new();
    let (mut moved, mut better, mut worse) = (0, 0, 0);
    for pair in pairs(played) {
        let at = pair[0].turn as usize;
        let class = trace.turns.get(at).map_or(0, |turn| turn.class.0);
        let objective = fleet.objective_of(trace, at);
        let of_class = by_class.entry(class).or_default();
        for (at, record) in pair.into_iter().enumerate() {
            let turn = (record, objective.0);
            all[at].push(turn);
            of_class[at].push(turn);
        }
        moved += usize::from(pair[0].worker != pair[1].worker);
        better += usize::from(change_ms(&pair) < 0.0);
        worse += usize::from(change_ms(&pair) > 0.0);
    }
    let figures = |turns: &[Vec<(TurnRecord, f64)>; 2]| turns.each_ref().map(|turns| Figures::of(turns));
    let [baseline, proposed] = figures(&all);
    let class = |(class, turns): (u16, [Vec<(TurnRecord, f64)>; 2])| {
        let [baseline, proposed] = figures(&turns);
        let met = turns[0].iter().map(|(_, objective)| *objective);
        ClassReport {
            class: trace.class_name(class),
            objective_ms: median(met),
            turns: turns[0].len(),
            baseline,
            proposed,
        }
    };
    let change = |pair: &[TurnRecord; 2]| change(pair, trace, fleet, played, kept);
    ReplayReport {
        turns: all[0].len(),
        unserved: played[0].report.unserved.max(played[1].report.unserved),
        workers: fleet.workers.iter().map(|worker| worker.name.clone()).collect(),
        fleet: fleet.workers.clone(),
        costs: summary(&fleet.workers),
        check,
        objective_ms: fleet.target.ttft.0,
        baseline: side(&played[0], baseline),
        proposed: side(&played[1], proposed),
        moved,
        better,
        worse,
        classes: by_class.into_iter().map(class).collect(),
        changes: changes.iter().map(change).collect(),
    }
}

fn change(
    pair: &[TurnRecord; 2],
    trace: &Trace,
    fleet: &ReplayFleet,
    played: &[Played; 2],
    kept: &[RetainedDecisions; 2],
) -> ChangedTurn {
    let turn = pair[0].turn;
    let asked = trace.turns.get(turn as usize);
    let class = trace.class_name(asked.map_or(0, |turn| turn.class.0));
    let seen = |at: usize| {
        let record = &pair[at];
        let settings = played[at].settings_of(&class);
        let scores = kept[at]
            .decision(turn)
            .map(|d| scored(d, &settings, |at| fleet.name(at)));
        TurnResult {
            worker: fleet.name(record.worker as usize),
            ttft_ms: record.ttft_ms,
            predicted_ms: record.predicted_ms,
            cached: record.cached,
            uncached: record.uncached,
            scores: scores.unwrap_or_default(),
        }
    };
    ChangedTurn {
        turn,
        conversation: asked.map_or(0, |turn| turn.conversation.0),
        number: asked.map_or(0, |turn| turn.turn),
        change_ms: change_ms(pair),
        decided_by: decided_by(pair, &class, played, kept),
        baseline: seen(0),
        proposed: seen(1),
        class,
    }
}

fn decided_by(
    pair: &[TurnRecord; 2],
    class: &str,
    played: &[Played; 2],
    kept: &[RetainedDecisions; 2],
) -> DecidingTerm {
    let [before, after] = pair;
    if before.worker == after.worker {
        return stayed(pair, &played[0].config);
    }
    let other = WorkerId(before.worker).index();
    match kept[1].decision(before.turn) {
        Some(decision) => verdict(decision, other, &played[1].settings_of(class)),
        None => DecidingTerm::UNKNOWN,
    }
}

/// Returns the change for a turn on the same worker: of its queue or of its cache.
fn stayed(pair: &[TurnRecord; 2], config: &FleetConfig) -> DecidingTerm {
    let prefill = |record: &TurnRecord| {
        let spec = config.workers.get(record.worker as usize);
        spec.map_or(0.0, |spec| spec.cost.prefill(record.uncached, record.cached).0)
    };
    let in_cache = prefill(&pair[1]) - prefill(&pair[0]);
    let in_queue = change_ms(pair) - in_cache;
    if in_cache.abs() > in_queue.abs() {
        DecidingTerm::new("same_worker_cache", in_cache)
    } else {
        DecidingTerm::new("same_worker_queue", in_queue)
    }
}
