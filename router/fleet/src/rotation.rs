//! Who may be given work, of those that are well: breakers and slow starts, and the bounds on both.
//!
//! Each worker's breaker goes by that worker's failures alone. But if many open at once, the few that are left get all
//! the work and fail in their turn: an error that was one worker's becomes everybody's. And if they open because of what
//! is asked, nobody is left who answers. So breakers keep work away from at most a share of the workers that could have
//! had it, the worst of them, and never from the last one; the others are used as if theirs were closed. This is decided
//! anew for each choice, among the workers that are well and serve the model, because that is what a request can be
//! given to: a bound on the whole fleet would let a model's only two workers go.
//!
//! A worker that comes back is cold: an empty cache, no compiled graphs, and nothing waits on it, so that it looks best
//! to every rule. For a while it may have no more requests in flight than a share, which grows from nothing to all, of
//! what the busiest of the others has; and always one. A cap was preferred over an added cost because it holds under
//! every policy, and because how much slower the worker is at first is not known.

use policy::route::WorkerView;

use super::breaker::Standing;

/// What there is to say of a worker beside its view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// What its breaker lets through.
    pub breaker: Standing,
    /// Share of its requests that failed: who has most is kept out first.
    pub failing: f64,
    /// How far it has started: 0 just now, 1 altogether.
    pub started: f64,
}

impl Condition {
    /// Nothing to say.
    pub const WELL: Self = Self {
        breaker: Standing::Closed,
        failing: 0.0,
        started: 1.0,
    };
}

/// Takes readiness from workers that had better not be given work. `conditions` are in the order of `views`; `max_share`
/// of those that are ready, and never all, are kept out by their breakers. Afterwards somebody is ready if somebody was.
/// Returns how many open breakers were passed over for want of others.
pub fn narrow(views: &mut [WorkerView], conditions: &[Condition], max_share: f64) -> usize {
    debug_assert_eq!(views.len(), conditions.len());
    let ready = views.iter().filter(|view| view.ready).count();
    let mut failing: Vec<usize> = (0..views.len())
        .filter(|&at| views[at].ready && conditions[at].breaker == Standing::Open)
        .collect();
    let most = ((max_share * ready as f64) as usize).min(ready.saturating_sub(1));
    failing.sort_by(|&a, &b| conditions[b].failing.total_cmp(&conditions[a].failing));
    for &at in failing.iter().take(most) {
        views[at].ready = false;
    }
    hold_back(views, conditions);
    failing.len().saturating_sub(most)
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

#[cfg(test)]
mod tests;
