//! The plays of a capture, and the report on them.

use std::ops::ControlFlow;
use std::sync::Arc;

use policy::cost::PrefillCost;
use policy::stats::median;
use policy::units::Tokens;
use simulator::fleet::{Decode, FleetConfig, Pace, Workload, WorkloadError, run_while};
use simulator::trace::Turn;
use simulator::trace_source::Trace;

use super::check::Check;
use super::compare::{self, ReplayReport};
use super::fleet::{ReplayFleet, Tried};
use super::played::{Played, RetainedDecisions};

#[derive(Debug)]
pub(super) enum Stopped {
    /// The simulation does not reproduce the measurements.
    Unlike(Box<Check>),
    /// The caller interrupted the play.
    Interrupted,
}

pub(super) struct Plays<'a> {
    trace: &'a Trace,
    fleet: &'a ReplayFleet,
    workload: &'a Workload,
    base: FleetConfig,
}

impl<'a> Plays<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        fleet: &'a ReplayFleet,
        workload: &'a Workload,
        base: FleetConfig,
    ) -> Self {
        let base = FleetConfig {
            decode: decode(trace),
            ..base
        };
        Self {
            trace,
            fleet,
            workload,
            base,
        }
    }

    /// Plays the settings in force and compares them with what was measured; then the baseline and the proposed
    /// settings, and once more for the decisions of the turns that change most.
    pub(super) fn report(
        &self,
        [in_force, baseline, proposed]: [Tried; 3],
        must_agree: bool,
        step: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ReplayReport, Stopped> {
        // Turns were measured at the capture's own pace.
        let in_force = FleetConfig {
            pace: Pace::Speed(1.0),
            ..self.under(in_force)
        };
        let (baseline, proposed) = (self.under(baseline), self.under(proposed));
        let is_measured = self.trace.turns.iter().any(|turn| turn.captured.ttft.is_some());
        let (mut check, mut before) = (None, None);
        if is_measured {
            let played = self.play(&in_force, step)?;
            check = Check::of(self.trace, self.fleet, &played).ok();
            if let Some(check) = check.take_if(|check| must_agree && !check.agrees()) {
                return Err(Stopped::Unlike(Box::new(check)));
            }
            before = Some(played).filter(|_| in_force == baseline);
        }
        let before = match before {
            Some(played) => played,
            None => self.play(&baseline, step)?,
        };
        let after = if proposed == baseline {
            before.clone()
        } else {
            self.play(&proposed, step)?
        };
        let played = [before, after];
        let changes = compare::largest(&played);
        let mut kept = [RetainedDecisions::of(&changes), RetainedDecisions::of(&changes)];
        if !changes.is_empty() {
            for (config, kept) in [&baseline, &proposed].into_iter().zip(&mut kept) {
                self.play_keeping(config, kept, step)?;
            }
        }
        Ok(compare::report(
            self.trace, self.fleet, &played, &changes, &kept, check,
        ))
    }

    fn under(&self, tried: Tried) -> FleetConfig {
        FleetConfig {
            settings: tried.settings,
            utilisation_window: tried.utilisation_window,
            cache: tried.cache,
            ..self.base.clone()
        }
    }

    fn play(
        &self,
        config: &FleetConfig,
        step: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Played, Stopped> {
        self.play_keeping(config, &mut RetainedDecisions::none(), step)
    }

    fn play_keeping(
        &self,
        config: &FleetConfig,
        kept: &mut RetainedDecisions,
        step: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Played, Stopped> {
        let report = run_while(self.workload, config, &mut |choice| {
            kept.see(choice);
            step()
        });
        let report = report.ok_or(Stopped::Interrupted)?;
        Ok(Played::new(report, config, self.workload.len(), self.fleet))
    }
}

pub(super) fn base(fleet: &ReplayFleet) -> FleetConfig {
    FleetConfig {
        workers: fleet.specs(),
        target: fleet.target,
        pace: Pace::Speed(1.0),
        // Arrivals come from the capture without jitter.
        jitter_s: 0.0,
        per_turn: true,
        ..FleetConfig::uniform(1, PrefillCost::linear(1.0, 0.0), Tokens::ZERO)
    }
}

/// Converts the trace to a workload with the class and objective of each turn.
pub(super) fn workload(trace: &Trace, fleet: &ReplayFleet) -> Result<Workload, WorkloadError> {
    let workload = Workload::new(&trace.turns, fleet.block_tokens(trace.block_tokens))?;
    let classes: Vec<Arc<str>> = trace
        .classes
        .iter()
        .map(|name| Arc::from(name.as_str()))
        .collect();
    let class_of = |at: usize| {
        let class = trace.turns.get(at)?.class;
        classes.get(usize::from(class.0)).cloned()
    };
    Ok(workload
        .with_objectives(|at| Some(fleet.objective_of(trace, at)))
        .with_classes(class_of))
}

/// Estimates the decoding time per token from the streamed responses of the capture. Policies that count requests in
/// flight count decoding ones too, and the next turn follows the response.
fn decode(trace: &Trace) -> Decode {
    let per_token = |turn: &Turn| {
        let (ttft, took) = (turn.captured.ttft?, turn.captured.took?);
        let tokens = turn
            .response_tokens
            .0
            .checked_sub(1)
            .filter(|tokens| *tokens > 0)?;
        (took > ttft).then(|| (took - ttft).0 / tokens as f64)
    };
    Decode {
        ms_per_token: median(trace.turns.iter().filter_map(per_token)),
        ..Decode::default()
    }
}
