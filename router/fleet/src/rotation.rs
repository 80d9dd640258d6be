//! Selects the workers that may be given turns among the healthy ones, by breakers and slow starts, and bounds both.
//!
//! If many breakers open at once, the remaining workers get all the load and fail in turn. So open breakers and late
//! probes withhold turns from at most a share of the eligible workers, the worst first, and never from the last one.
//! This is evaluated among the workers that serve the model: a bound over the whole fleet could withhold a model's only
//! two workers.
//!
//! A restarted worker is cold and idle, so that every policy prefers it. For a while its requests in flight are capped
//! at a growing share, from none to all, of those of the busiest other worker, and at least one. Unlike an added cost,
//! a cap holds under every policy.
//!
//! A worker that pauses after a refusal ([`super::pause`]), or on which the same request has failed, is avoided while
//! another one remains.

use policy::route::WorkerView;

use super::breaker::BreakerState;

/// A worker's condition, which its view does not show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// The requests that the worker's breaker admits.
    pub breaker: BreakerState,
    /// Failed share of the worker's requests. Workers with the highest share are withheld first.
    pub failed_share: f64,
    /// Progress of the worker's slow start, from 0 to 1.
    pub started: f64,
    /// Whether the worker's probes are late.
    pub late: bool,
    /// Whether another worker is preferred, because this one has declined a request, or has failed the same request
    /// before.
    pub is_avoided: bool,
}

impl Condition {
    /// The condition of a closed breaker and a finished start.
    pub const WELL: Self = Self {
        breaker: BreakerState::Closed,
        failed_share: 0.0,
        started: 1.0,
        late: false,
        is_avoided: false,
    };

    fn is_open(&self) -> bool {
        self.breaker == BreakerState::Open
    }
}

/// Clears `ready` of workers that should not be given turns. `conditions` are in the order of `views`. Breakers and
/// late probes withhold at most `max_share` of the ready workers and never all. Returns how many open breakers were
/// overridden.
pub fn narrow(views: &mut [WorkerView], conditions: &[Condition], max_share: f64) -> usize {
    debug_assert_eq!(views.len(), conditions.len());
    let ready = views.iter().filter(|view| view.ready).count();
    let mut failing: Vec<usize> = (0..views.len())
        .filter(|&at| views[at].ready && (conditions[at].is_open() || conditions[at].late))
        .collect();
    let most = ((max_share * ready as f64) as usize).min(ready.saturating_sub(1));
    failing.sort_by(|&a, &b| {
        let (a, b) = (&conditions[a], &conditions[b]);
        let by_failures = || b.failed_share.total_cmp(&a.failed_share);
        b.is_open().cmp(&a.is_open()).then_with(by_failures)
    });
    for &at in failing.iter().take(most) {
        views[at].ready = false;
    }
    hold_back(views, conditions);
    let overridden = failing.iter().skip(most);
    overridden.filter(|&&at| conditions[at].is_open()).count()
}

fn hold_back(views: &mut [WorkerView], conditions: &[Condition]) {
    let has_started = |(view, condition): (&WorkerView, &Condition)| {
        (view.ready && condition.started >= 1.0).then_some(view.in_flight)
    };
    let Some(busiest) = views.iter().zip(conditions).filter_map(has_started).max() else {
        return;
    };
    for (view, condition) in views.iter_mut().zip(conditions) {
        if condition.started < 1.0 {
            let most = (condition.started * (f64::from(busiest) + 1.0)).max(1.0);
            view.ready &= f64::from(view.in_flight) + 1.0 <= most;
        }
    }
}

/// Clears `ready` of avoided workers, if another one remains.
pub fn avoid(views: &mut [WorkerView], conditions: &[Condition]) {
    let remains = |(view, condition): (&WorkerView, &Condition)| view.ready && !condition.is_avoided;
    if views.iter().zip(conditions).any(remains) {
        for (view, condition) in views.iter_mut().zip(conditions) {
            view.ready &= !condition.is_avoided;
        }
    }
}

#[cfg(test)]
mod tests;
