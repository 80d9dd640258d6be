//! Calibrations from `gpu-bench --push`, shared by all replicas in one key of the bucket.
//!
//! A push takes effect at once on the replica that receives it, which writes it into the bucket as soon as NATS is
//! connected. The others take entries newer than theirs: a calibration's number is one more than all before it.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use policy::cost::PrefillCost;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Bus;
use super::bucket::{BREATH, Bucket, BucketError, HIGHEST_NUMBER, LONGEST_BYTES};
use fleet::overrides::Measured;
use operator::audit::{AuditRecord, Author};
use state::State;

const KEY: &str = "calibrations";
/// Polling interval of the bucket.
const LOOK: Duration = Duration::from_secs(2);

/// A worker's calibration in the bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// α, in milliseconds per uncached token.
    pub alpha_ms_per_token: f64,
    /// β, in milliseconds.
    pub beta_ms: f64,
    /// γ, in milliseconds per square token.
    pub gamma_ms_per_token2: f64,
    /// Shortest time of a prompt, in milliseconds; 0 without a floor.
    #[serde(default)]
    pub floor_ms: f64,
    /// Time of the measurement, in seconds since 1970.
    pub measured_at_unix_s: u64,
    /// Share of the variance that the fit explains.
    pub r_squared: f64,
    /// Name of the token that the calibration was pushed with.
    pub by: String,
    /// Reason that was given with the push.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    /// Number of the calibration, higher than all earlier ones.
    number: u64,
    replica: String,
    #[serde(flatten)]
    what: Calibration,
}

/// Calibrations by worker name.
type All = BTreeMap<String, Told>;

#[derive(Debug, Default)]
pub(super) struct Calibrations {
    state: Mutex<Exchanged>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct Exchanged {
    /// Calibrations that were pushed to this replica and are not yet in the bucket.
    new: BTreeMap<String, Calibration>,
    /// Number of the calibration in force on this replica, by worker.
    taken: BTreeMap<String, u64>,
    /// Content of the bucket at the last read.
    known: All,
}

impl Calibration {
    fn measured(&self) -> Option<Measured> {
        let cost = PrefillCost {
            alpha_ms_per_token: self.alpha_ms_per_token,
            beta_ms: self.beta_ms,
            gamma_ms_per_token2: self.gamma_ms_per_token2,
            floor_ms: self.floor_ms,
        };
        let numbers = [
            self.beta_ms,
            self.gamma_ms_per_token2,
            self.floor_ms,
            self.r_squared,
        ];
        // The same checks as on the admin port, because any replica may have written it.
        let is_cost = cost.alpha_ms_per_token > 0.0 && numbers.iter().all(|number| *number >= 0.0);
        let is_finite = cost.alpha_ms_per_token <= 1e6
            && cost.beta_ms <= 1e9
            && cost.gamma_ms_per_token2 <= 1e3
            && cost.floor_ms <= 1e9;
        (is_cost && is_finite).then_some(Measured {
            cost,
            at_unix_s: self.measured_at_unix_s,
            r_squared: self.r_squared,
        })
    }
}

impl Bus {
    /// Records a calibration that was pushed to this replica, for the others.
    pub fn calibrated(&self, worker: &str, what: Calibration) {
        let mut state = self.calibrations.state.lock();
        state.new.insert(worker.to_owned(), what);
        drop(state);
        self.calibrations.wanted.notify_one();
    }

    /// Writes the calibrations pushed to this replica, and applies those pushed to others.
    async fn exchange_calibrations(&self, state: &State, bucket: &Bucket) -> Result<(), BucketError> {
        loop {
            let standing = bucket.get(KEY).await?;
            let mut all: All = match &standing.value {
                Some(bytes) => read(bytes).map_err(|why| bucket.unreadable(KEY, &why))?,
                // The key was never written, or the bucket was lost; otherwise it was deleted.
                None if standing.sequence == 0 => self.calibrations.state.lock().known.clone(),
                None => All::new(),
            };
            let new = self.calibrations.state.lock().new.clone();
            let is_lost = standing.value.is_none() && !all.is_empty();
            if new.is_empty() && !is_lost {
                self.take_calibrations(state, all).await;
                return Ok(());
            }
            let numbers = number(&mut all, &new, &self.name);
            let bytes = fitting(&mut all);
            if bucket.put(KEY, bytes, standing.sequence).await?.is_some() {
                {
                    let mut state = self.calibrations.state.lock();
                    // A push received in the meantime is newer.
                    state.new.retain(|worker, what| new.get(worker) != Some(what));
                    state.taken.extend(numbers);
                }
                self.take_calibrations(state, all).await;
                return Ok(());
            }
        }
    }

    async fn take_calibrations(&self, state: &State, all: All) {
        for (name, told) in &all {
            let Some(worker) = state
                .routing
                .fleet
                .present()
                .into_iter()
                .find(|worker| worker.name() == name)
            else {
                continue;
            };
            let is_news = {
                let mut state = self.calibrations.state.lock();
                // A push that is on its way to the bucket is newer.
                let is_new = state.taken.get(name) != Some(&told.number) && !state.new.contains_key(name);
                if is_new {
                    state.taken.insert(name.clone(), told.number);
                }
                is_new
            };
            let Some(measured) = told.what.measured().filter(|_| is_news) else {
                continue;
            };
            if worker.calibration() == Some(measured) {
                // Restored from a snapshot, with what was learned since.
                continue;
            }
            let before = worker.cost();
            state.calibrate(&worker, measured);
            let happened = AuditRecord {
                who: Author {
                    name: told.what.by.clone(),
                    ..Author::router()
                },
                action: "workers.calibrate_adopt".to_owned(),
                target: name.clone(),
                why: Some(told.what.reason.clone()),
                outcome: Ok((
                    serde_json::to_value(before).ok(),
                    Some(json!({ "cost": measured.cost, "replica": told.replica })),
                )),
            };
            state.operations.operator.audit.record(happened).await;
        }
        let mut state = self.calibrations.state.lock();
        state.taken.retain(|name, _| all.contains_key(name));
        state.known = all;
    }
}

fn read(bytes: &[u8]) -> Result<All, String> {
    if bytes.len() > LONGEST_BYTES {
        return Err(format!("{} bytes", bytes.len()));
    }
    let all: All = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match all.values().find(|told| told.number > HIGHEST_NUMBER) {
        Some(told) => Err(format!("number {}", told.number)),
        None => Ok(all),
    }
}

/// Numbers the new calibrations after all earlier ones. Returns the numbers.
fn number(all: &mut All, new: &BTreeMap<String, Calibration>, replica: &str) -> Vec<(String, u64)> {
    let mut last = all.values().map(|told| told.number).max().unwrap_or(0);
    let mut numbers = Vec::new();
    for (worker, what) in new {
        last += 1;
        numbers.push((worker.clone(), last));
        let told = Told {
            number: last,
            replica: replica.to_owned(),
            what: what.clone(),
        };
        all.insert(worker.clone(), told);
    }
    numbers
}

fn fitting(all: &mut All) -> Vec<u8> {
    loop {
        let bytes = serde_json::to_vec(all).unwrap_or_default();
        let oldest = all.iter().min_by_key(|(_, told)| told.number);
        let Some(oldest) = oldest
            .map(|(name, _)| name.clone())
            .filter(|_| bytes.len() > LONGEST_BYTES)
        else {
            return bytes;
        };
        all.remove(&oldest);
    }
}

pub(super) async fn follow(state: Arc<State>, bus: Arc<Bus>) {
    let Some(bucket) = bus.bucket() else {
        return pending().await;
    };
    let mut trouble = None;
    loop {
        if let Ok(mut told) = bucket.changes(KEY).await {
            loop {
                if bus.is_up() {
                    let error = bus.exchange_calibrations(&state, &bucket).await.err();
                    if error != trouble {
                        say(error.as_ref());
                    }
                    trouble = error;
                }
                let next = Instant::now() + BREATH;
                let may_hear = tokio::select! {
                    heard = told.changed() => {
                        tokio::time::sleep_until(next).await;
                        heard.is_ok()
                    }
                    () = bus.calibrations.wanted.notified() => true,
                    () = tokio::time::sleep(LOOK) => true,
                };
                if !may_hear {
                    break;
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn say(error: Option<&BucketError>) {
    match error {
        // The live policy has already reported this.
        None | Some(BucketError::NoJetStream) => debug!("calibrations: {error:?}"),
        Some(error) => warn!(%error, "calibrations are not shared"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(alpha_ms_per_token: f64) -> Calibration {
        Calibration {
            alpha_ms_per_token,
            beta_ms: 1.0,
            gamma_ms_per_token2: 0.0,
            floor_ms: 0.0,
            measured_at_unix_s: 0,
            r_squared: 0.9,
            by: "a".to_owned(),
            reason: "measured".to_owned(),
        }
    }

    #[test]
    fn the_latest_calibration_has_the_highest_number_and_is_kept_longest() {
        let mut all = All::new();
        number(
            &mut all,
            &BTreeMap::from([("first".to_owned(), measured(1.0))]),
            "r",
        );
        for worker in 0..1_000 {
            let new = BTreeMap::from([(format!("worker-{worker}"), measured(2.0))]);
            number(&mut all, &new, "r");
        }
        let numbers = number(
            &mut all,
            &BTreeMap::from([("last".to_owned(), measured(3.0))]),
            "r",
        );
        assert_eq!(numbers, [("last".to_owned(), 1_002)]);
        let bytes = fitting(&mut all);
        assert!(bytes.len() <= LONGEST_BYTES && bytes.len() > LONGEST_BYTES - 500);
        assert!(!all.contains_key("first") && all.contains_key("last"));
        assert_eq!(serde_json::from_slice::<All>(&bytes).unwrap(), all);
    }

    #[test]
    fn bucket_values_are_read_within_bounds() {
        let told = |number: u64| {
            let what = Told {
                number,
                replica: "r".to_owned(),
                what: measured(1.0),
            };
            serde_json::to_vec(&All::from([("w".to_owned(), what)])).unwrap()
        };
        assert_eq!(read(&told(HIGHEST_NUMBER)).unwrap().len(), 1);
        // The largest number would leave none for the next calibration.
        assert!(read(&told(u64::MAX)).is_err());
        for garbage in [&b"\xff"[..], b"[]", b"{\"w\":1}", &vec![b' '; LONGEST_BYTES + 1]] {
            assert!(read(garbage).is_err());
        }
    }

    #[test]
    fn invalid_costs_are_ignored() {
        assert!(measured(0.1).measured().is_some());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e7] {
            assert!(measured(wrong).measured().is_none(), "{wrong}");
        }
        let negative = Calibration {
            beta_ms: -1.0,
            ..measured(0.1)
        };
        assert!(negative.measured().is_none());
    }
}
