//! Sources of the simulated workers' costs.

use policy::cost::PrefillCost;
use policy::fleet_record::{CostSource, WorkerRecord};
use policy::units::{Millis, Tokens};
use serde::Serialize;
use simulator::fleet::WorkerSpec;

#[derive(Clone, Debug, Serialize)]
pub(super) struct SimWorker {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) cost: PrefillCost,
    /// Time to first token beside queue and prefill.
    pub(super) overhead_ms: Millis,
    pub(super) capacity_tokens: Tokens,
    pub(super) costs_from: CostsFrom,
    /// Source of the cost, as the router recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost_source: Option<CostSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CostsFrom {
    /// A calibration, or coefficients, of the configuration.
    Configuration,
    Capture,
    Router,
    Options,
    /// The default, because no other source has the cost.
    Assumed,
}

impl SimWorker {
    pub(super) fn of(record: &WorkerRecord, costs_from: CostsFrom) -> Self {
        Self {
            name: record.name.clone(),
            cost: record.cost,
            overhead_ms: record.overhead_ms,
            capacity_tokens: record.capacity_tokens,
            costs_from,
            cost_source: Some(record.cost_source),
        }
    }

    pub(super) fn spec(&self) -> WorkerSpec {
        WorkerSpec {
            cost: self.cost,
            capacity: self.capacity_tokens,
        }
    }

    fn is_assumed(&self) -> bool {
        self.costs_from == CostsFrom::Assumed || self.cost_source == Some(CostSource::Default)
    }

    fn origin(&self) -> String {
        let cost = &self.cost;
        let source = match self.cost_source {
            Some(CostSource::Calibrated | CostSource::Configured) => "calibrated",
            Some(CostSource::Learned) => "learned",
            Some(CostSource::Fleet) => "the median of the other workers",
            Some(CostSource::Default) | None => "the default",
        };
        match self.costs_from {
            CostsFrom::Configuration => "from the configuration".to_owned(),
            CostsFrom::Capture => format!("from the capture, {source}"),
            CostsFrom::Router => format!("from the router, {source}"),
            CostsFrom::Options => "from the command line".to_owned(),
            CostsFrom::Assumed => format!(
                "assumed (α {} ms per token, β {} ms), because neither a calibration nor the capture has them",
                cost.alpha_ms_per_token, cost.beta_ms
            ),
        }
    }
}

pub(super) fn summary(workers: &[SimWorker]) -> String {
    let mut origins: Vec<(String, usize)> = Vec::new();
    for worker in workers {
        let origin = worker.origin();
        match origins.iter_mut().find(|(known, _)| *known == origin) {
            Some((_, count)) => *count += 1,
            None => origins.push((origin, 1)),
        }
    }
    let only = origins.len() == 1;
    let of = |(origin, count): &(String, usize)| match count {
        _ if only => origin.clone(),
        1 => format!("1 worker {origin}"),
        count => format!("{count} workers {origin}"),
    };
    origins.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// Returns whether any worker's cost is neither measured nor learned.
pub(super) fn any_assumed(workers: &[SimWorker]) -> bool {
    workers.iter().any(SimWorker::is_assumed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(costs_from: CostsFrom, cost_source: Option<CostSource>) -> SimWorker {
        SimWorker {
            name: "w".to_owned(),
            cost: PrefillCost::linear(0.1, 20.0),
            overhead_ms: Millis::ZERO,
            capacity_tokens: Tokens(1000),
            costs_from,
            cost_source,
        }
    }

    #[test]
    fn costs_are_named_by_their_origin() {
        let learned = worker(CostsFrom::Capture, Some(CostSource::Learned));
        let assumed = worker(CostsFrom::Assumed, None);
        assert_eq!(
            summary(&[learned.clone(), learned.clone()]),
            "from the capture, learned"
        );
        assert!(!any_assumed(std::slice::from_ref(&learned)));
        let mixed = [learned, assumed];
        assert_eq!(
            summary(&mixed),
            "1 worker from the capture, learned; 1 worker assumed (α 0.1 ms per token, β 20 ms), because neither a \
             calibration nor the capture has them"
        );
        assert!(any_assumed(&mixed));
    }
}
