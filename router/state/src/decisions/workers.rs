//! Workers that operators have added, removed, taken out of service or measured.

use std::collections::BTreeMap;

use crate::Routing;
use config::WorkerDocument;
use fleet::Worker;
use fleet::overrides::{AdminState, Measured, PinnedAlpha};
use fleet::source::WorkerSource;
use operator::revisions::timers::LONGEST_S;
use operator::unix_ms;
use policy::cost::PrefillCost;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use super::read;
use crate::State;

/// Most added workers that are restored, and most workers with holds, overrides or calibrations.
const MOST: usize = 10_000;

/// Hold, override of α and calibration of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptWorker {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold: Option<Hold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alpha: Option<KeptAlpha>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    measured: Option<KeptMeasured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Hold {
    Cordoned,
    Draining,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct KeptAlpha {
    alpha_ms_per_token: f64,
    until_unix_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct KeptMeasured {
    cost: PrefillCost,
    at_unix_s: u64,
    r_squared: f64,
}

impl KeptWorker {
    fn of(routing: &Routing, worker: &Worker) -> Option<Self> {
        let hold = match worker.admin_state() {
            AdminState::Cordoned => Some(Hold::Cordoned),
            AdminState::Draining => Some(Hold::Draining),
            AdminState::None => None,
            AdminState::Leaving | AdminState::Gone => return None,
        };
        let alpha = worker.pinned_alpha().map(|pin| KeptAlpha {
            alpha_ms_per_token: pin.alpha_ms_per_token,
            until_unix_ms: pin
                .until
                .map(|until| routing.clock.unix_ms(until).max(0.0) as u64),
        });
        let measured = worker.calibration().map(|measured| KeptMeasured {
            cost: measured.cost,
            at_unix_s: measured.at_unix_s,
            r_squared: measured.r_squared,
        });
        let is_any = hold.is_some() || alpha.is_some() || measured.is_some();
        is_any.then(|| Self {
            url: worker.spec.url.to_string(),
            hold,
            alpha,
            measured,
        })
    }

    /// Applies the hold, α and calibration to the worker. α and calibration are those of the machine, so they are
    /// dropped if the worker has another address.
    pub(super) fn apply(&self, state: &State, worker: &Worker) {
        if let Some(hold) = self.hold {
            worker.set_admin_state(match hold {
                Hold::Cordoned => AdminState::Cordoned,
                Hold::Draining => AdminState::Draining,
            });
            state.operations.worker_changed(worker);
        }
        let is_there = self.url == worker.spec.url.to_string();
        if !is_there && (self.alpha.is_some() || self.measured.is_some()) {
            warn!(
                worker = worker.name(),
                url = self.url,
                "α and calibration dropped: the worker has another address"
            );
            return;
        }
        if let Some(measured) = &self.measured {
            self.calibrate(state, worker, measured);
        }
        if let Some(alpha) = self.alpha {
            if !(alpha.alpha_ms_per_token > 0.0 && alpha.alpha_ms_per_token <= 1e6) {
                warn!(
                    worker = worker.name(),
                    alpha = alpha.alpha_ms_per_token,
                    "α not restored: out of range"
                );
                return;
            }
            // One that is over ends at once, which is audited.
            let left = |until: u64| (until as f64 - unix_ms() as f64).min(LONGEST_S * 1e3);
            worker.pin_alpha(Some(PinnedAlpha {
                alpha_ms_per_token: alpha.alpha_ms_per_token,
                until: alpha
                    .until_unix_ms
                    .map(|until| state.routing.clock.now() + policy::units::Millis(left(until))),
            }));
            state.operations.operator.alphas_set.notify_one();
        }
    }

    fn calibrate(&self, state: &State, worker: &Worker, measured: &KeptMeasured) {
        if measured.cost.is_sound() && (0.0..=1.0).contains(&measured.r_squared) {
            state.calibrate(
                worker,
                Measured {
                    cost: measured.cost,
                    at_unix_s: measured.at_unix_s,
                    r_squared: measured.r_squared,
                },
            );
        } else {
            warn!(worker = worker.name(), cost = ?measured.cost, "calibration not restored: out of range");
        }
    }

    /// Describes the decisions in a few words, for the log.
    pub(super) fn in_words(&self) -> String {
        let hold = self.hold.map(|hold| match hold {
            Hold::Cordoned => "cordoned",
            Hold::Draining => "draining",
        });
        let others = [self.alpha.map(|_| "α set"), self.measured.map(|_| "calibrated")];
        let words: Vec<&str> = hold.into_iter().chain(others.into_iter().flatten()).collect();
        words.join(", ")
    }
}

/// Returns a digest of a worker's configuration.
fn digest(spec: &config::Worker) -> String {
    format!("{:016x}", xxh3_64(spec.document().to_string().as_bytes()))
}

/// Returns the digests of the configured workers by name.
pub(super) fn configured(routing: &Routing) -> BTreeMap<String, String> {
    let digest = |spec: &config::Worker| (spec.name.clone(), digest(spec));
    routing.config.workers.iter().map(digest).collect()
}

/// Returns the documents of the workers that were added by hand.
pub(super) fn added(routing: &Routing) -> Vec<Value> {
    let present = routing.fleet.present();
    let added = present
        .iter()
        .filter(|worker| worker.source == WorkerSource::Operator && !worker.admin_state().is_final());
    added.map(|worker| worker.spec.document()).collect()
}

/// Returns the names of the configured workers that were removed by hand.
pub(super) fn removed(routing: &Routing) -> Vec<String> {
    let present = routing.fleet.present();
    let is_there = |name: &str| {
        present.iter().any(|worker| {
            worker.name() == name
                && worker.source == WorkerSource::Configuration
                && !worker.admin_state().is_final()
        })
    };
    let names = routing.config.workers.iter().map(|spec| &spec.name);
    names.filter(|name| !is_there(name)).cloned().collect()
}

/// Returns the decisions about each worker, including those that have not been found yet.
pub(super) fn kept(state: &State) -> BTreeMap<String, KeptWorker> {
    let mut kept = state.operations.pending.lock().decided.clone();
    for worker in state.routing.fleet.present() {
        if let Some(worker_kept) = KeptWorker::of(&state.routing, &worker) {
            kept.insert(worker.name().to_owned(), worker_kept);
        }
    }
    kept
}

/// Restores decisions about workers. An entry that was added to the configuration or changed there since takes
/// precedence.
pub(super) fn restore(state: &State, member: &mut impl FnMut(&str) -> Value) {
    let before: BTreeMap<String, String> = read("configured", member("configured")).unwrap_or_default();
    let is_decided_anew = |spec: &config::Worker| before.get(&spec.name) != Some(&digest(spec));
    for name in read::<Vec<String>>("removed", member("removed")).unwrap_or_default() {
        let specs = &state.config.workers;
        match specs.iter().find(|spec| spec.name == name) {
            Some(spec) if is_decided_anew(spec) => {
                info!(
                    worker = name,
                    "joins again: its entry in [[workers]] has changed since it was removed"
                );
            }
            Some(_) => remove(state, &name),
            None => {}
        }
    }
    for document in read::<Vec<Value>>("added", member("added"))
        .unwrap_or_default()
        .into_iter()
        .take(MOST)
    {
        let name = document["name"].as_str().unwrap_or("without a name").to_owned();
        match add(state, &document, &is_decided_anew) {
            Ok(()) => info!(worker = name, "a worker that was added by hand joins again"),
            Err(why) => warn!(
                worker = name,
                why, "a worker that was added by hand does not join again"
            ),
        }
    }
    let workers = read::<BTreeMap<String, Value>>("workers", member("workers")).unwrap_or_default();
    for (name, kept) in workers.into_iter().take(MOST) {
        let kept: KeptWorker = match serde_json::from_value(kept) {
            Ok(kept) => kept,
            Err(error) => {
                warn!(worker = name, %error, "its hold is not restored: it cannot be read");
                continue;
            }
        };
        match state.routing.fleet.find(&name) {
            Some(worker) => {
                kept.apply(state, &worker);
                info!(worker = name, what = kept.in_words(), "restored");
            }
            None => {
                state.operations.pending.lock().decided.insert(name, kept);
            }
        }
    }
}

fn remove(state: &State, name: &str) {
    if let Some(worker) = state.routing.fleet.find(name) {
        state.leave(&worker);
        state.forget_if_done(&worker);
        info!(
            worker = name,
            "stays removed, although [[workers]] of the configuration has it"
        );
    }
}

fn add(
    state: &State,
    document: &Value,
    is_decided_anew: &impl Fn(&config::Worker) -> bool,
) -> Result<(), String> {
    let document: WorkerDocument = config::read_document(document).map_err(|error| error.to_string())?;
    let spec = document.check().map_err(|error| error.to_string())?;
    let of_file = state.config.workers.iter().find(|other| other.name == spec.name);
    if of_file.is_some_and(is_decided_anew) {
        return Err("[[workers]] of the configuration has a worker of this name now".to_owned());
    }
    let present = state.routing.fleet.present();
    let is_taken_over = |other: &&std::sync::Arc<Worker>| {
        other.source == WorkerSource::Configuration
            && other.spec.url == spec.url
            && other.name() != spec.name
            && is_decided_anew(&other.spec)
    };
    let same = present.iter().find(is_taken_over);
    if let Some(other) = same {
        return Err(format!(
            "{} of the configuration has its address now",
            other.name()
        ));
    }
    if of_file.is_some() {
        // It was removed by hand, and another one was added under its name.
        remove(state, &spec.name);
    }
    state.join(spec).map(|_| ()).map_err(|error| error.to_string())
}
