//! Previews of the admin API: the newest turns on the running fleet.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use policy::hint_rule::HintRule;
use policy::route::Settings;
use simulator::fleet::{FleetConfig, WorkloadError};
use simulator::trace_file::TraceFileError;
use simulator::trace_source::Trace;

use super::fleet::{ReplayFleet, Tried};
use super::plays::{Plays, Stopped, base, workload};
use super::table::remedy;

/// Share of captured turns, from the first, that fill the caches and are not counted.
const WARM_UP: f64 = 0.2;

/// The reason why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The captured turns are not a valid trace.
    #[error("the captured turns cannot be read")]
    Unreadable(#[from] TraceFileError),
    /// The trace cannot be played.
    #[error("the captured turns cannot be played")]
    Unplayable(#[from] WorkloadError),
    /// The comparison took longer than the time limit.
    #[error("it was cut off after {:.0} s", .0.as_secs_f64())]
    TooLong(Duration),
    /// The simulation does not reproduce the measurements.
    #[error("{0}")]
    Unlike(String),
    /// The report cannot be serialised.
    #[error("the report cannot be written")]
    Unwritable(#[from] serde_json::Error),
}

/// Compares the settings in force with others, or with another rule of hints, on captured turns and this fleet. Returns the report of
/// `tailroute replay --json`, `anyway` even if the simulation does not reproduce what was measured. Fails if the turns
/// are no valid trace, cannot be played or reproduced, or take longer than `limit`.
pub fn preview(
    capture: &[u8],
    fleet: &ReplayFleet,
    (settings, hint_rule): (Option<Settings>, Option<HintRule>),
    anyway: bool,
    limit: Duration,
) -> Result<serde_json::Value, PreviewError> {
    let until = Instant::now() + limit;
    let trace = Trace::of_bytes(capture)?;
    let workload = workload(&trace, fleet)?;
    let base = FleetConfig {
        warm_up: WARM_UP,
        ..base(fleet)
    };
    let mut step = || {
        if Instant::now() < until {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let in_force = fleet.in_force();
    let proposed = Tried {
        settings: settings.unwrap_or_else(|| in_force.settings.clone()),
        cache: hint_rule.map_or(in_force.cache, |rule| fleet.cache_under(rule)),
        ..in_force.clone()
    };
    let tried = [in_force.clone(), in_force, proposed];
    match Plays::new(&trace, fleet, &workload, base).report(tried, !anyway, &mut step) {
        Ok(report) => Ok(serde_json::to_value(report)?),
        Err(Stopped::Interrupted) => Err(PreviewError::TooLong(limit)),
        Err(Stopped::Unlike(check)) => {
            let remedy = remedy(&fleet.workers);
            Err(PreviewError::Unlike(format!("{}. {remedy}", check.difference())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::FleetArgs;

    #[test]
    fn a_preview_that_takes_too_long_is_cut_off() {
        let turns = (0..100).map(|at| {
            format!("{{\"ts\":{at},\"conv\":{at},\"turn\":0,\"prompt_tokens\":100,\"response_tokens\":1}}\n")
        });
        let capture: String = turns.collect();
        let trace = Trace::of_bytes(capture.as_bytes()).unwrap();
        let fleet = FleetArgs::default().fleet(None, &trace);
        let try_for = |limit| {
            preview(
                capture.as_bytes(),
                &fleet,
                (Some(Settings::default()), None),
                false,
                Duration::from_secs(limit),
            )
        };
        let cut = try_for(0);
        assert!(matches!(cut, Err(PreviewError::TooLong(_))), "{cut:?}");
        let whole = try_for(600).unwrap();
        assert_eq!(whole["turns"], 80, "the first fifth is not counted");
    }
}
