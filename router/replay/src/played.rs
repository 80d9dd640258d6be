//! One play of a capture, with a record of each turn.

use std::collections::BTreeMap;

use policy::route::{Decision, Settings};
use simulator::fleet::{Choice, FleetConfig, FleetReport, TurnRecord};

use super::fleet::ReplayFleet;

#[derive(Clone, Debug)]
pub(super) struct Played {
    pub(super) config: FleetConfig,
    pub(super) report: FleetReport,
    pub(super) records: Vec<Option<TurnRecord>>,
    pub(super) warm_up: usize,
}

impl Played {
    pub(super) fn new(
        mut report: FleetReport,
        config: &FleetConfig,
        turns: usize,
        fleet: &ReplayFleet,
    ) -> Self {
        let mut records = vec![None; turns];
        for mut record in report.per_turn.take().unwrap_or_default() {
            let worker = fleet.workers.get(record.worker as usize);
            let overhead_ms = worker.map_or(0.0, |worker| worker.overhead_ms.0);
            record.ttft_ms += overhead_ms;
            record.predicted_ms += overhead_ms;
            if let Some(slot) = records.get_mut(record.turn as usize) {
                *slot = Some(record);
            }
        }
        Self {
            config: config.clone(),
            report,
            records,
            warm_up: (turns as f64 * config.warm_up) as usize,
        }
    }

    /// Returns the counted turns that were served.
    pub(super) fn counted(&self) -> impl Iterator<Item = TurnRecord> {
        self.records
            .iter()
            .skip(self.warm_up)
            .filter_map(|record| *record)
    }

    /// Returns the settings that applied to turns of this class.
    pub(super) fn settings_of(&self, class: &str) -> Settings {
        let everybodys = &self.config.settings;
        let own = everybodys.for_turn(class, None);
        own.map_or_else(|| everybodys.clone(), |(own, _)| own)
    }
}

#[derive(Debug)]
pub(super) struct RetainedDecisions(BTreeMap<u32, Option<Decision>>);

impl RetainedDecisions {
    pub(super) fn none() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn of(changes: &[[TurnRecord; 2]]) -> Self {
        Self(changes.iter().map(|[before, _]| (before.turn, None)).collect())
    }

    /// Records a decision. The last one of a turn is kept: a turn is sent again if its worker fails.
    pub(super) fn see(&mut self, choice: Choice<'_>) {
        if let Some(slot) = self.0.get_mut(&choice.turn) {
            *slot = Some(choice.decision.clone());
        }
    }

    pub(super) fn decision(&self, turn: u32) -> Option<&Decision> {
        self.0.get(&turn)?.as_ref()
    }
}
