//! The live policy of all replicas: one key in the bucket, with compare-and-set and history (docs/scaling.md).
//!
//! Each replica is notified of writes, and also reads the key every two seconds and after a reconnection. A write
//! without an answer may have succeeded. If the change is found in the bucket, it takes effect and is audited like
//! another replica's.

mod document;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use self::document::Document;
use super::Bus;
use super::bucket::{BREATH, Bucket, BucketError, Standing};
use operator::audit::AuditRecord;
use operator::revisions::{Adopted, AppliedChange, Change, Revision, Stale};
use state::State;

const KEY: &str = "policy";
/// Polling interval of the bucket.
const LOOK: Duration = Duration::from_secs(2);
/// Pause after an attempt that failed.
const AGAIN: Duration = Duration::from_millis(500);
/// Time by which a temporary change must be overdue before a replica that is not the leader reverts it.
const OVERDUE: Millis = Millis(6_000.0);
/// Time limit for a change.
const LIMIT: Duration = Duration::from_secs(5);
/// Number of attempts of a change without an expected revision, if others interfere.
const ATTEMPTS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct LivePolicy {
    /// Lock that serialises reads and changes of the bucket.
    turn: tokio::sync::Mutex<()>,
    looked: Mutex<Looked>,
    /// Notification that the bucket should be read.
    pub(super) wanted: Notify,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Looked {
    #[default]
    Never,
    Found,
    Failed(BucketError),
}

/// The state of the live policy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LivePolicyState {
    /// Whether the policy is shared through the bucket; otherwise it is this replica's own.
    pub shared: bool,
    /// Whether the policy can be changed now.
    pub changeable: bool,
    /// Error of the bucket; absent if the bucket can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Another revision is in force.
    #[error("revision {0} is now in force")]
    Stale(u64),
    /// NATS is not connected.
    #[error(
        "NATS is not connected ({0}), and a change would apply to this replica alone: nothing was changed. Try \
         again when GET /admin/v1/replicas reports a connection"
    )]
    Gone(String),
    /// The bucket cannot be read.
    #[error("{0}; a change would apply to this replica alone: nothing was changed")]
    Unread(BucketError),
    /// The write was not confirmed.
    #[error("{0}; it is not known whether the policy was changed: GET it when NATS answers again")]
    Unwritten(BucketError),
}

impl Bus {
    /// Returns whether the policy is this replica's own, because there is no bucket.
    pub fn has_own_policy(&self) -> bool {
        *self.live_policy.looked.lock() == Looked::Failed(BucketError::NoJetStream)
    }

    pub(super) fn live_policy_state(&self) -> LivePolicyState {
        let looked = self.live_policy.looked.lock().clone();
        let own = self.has_own_policy();
        LivePolicyState {
            shared: !own,
            changeable: own || (self.is_up() && looked == Looked::Found),
            error: match looked {
                Looked::Failed(error) => Some(error.to_string()),
                _ => None,
            },
        }
    }

    /// Changes the policy of all replicas. A given `expected` must be the current revision. Fails if another revision
    /// is in force, or the bucket cannot be reached.
    pub async fn change_policy(
        &self,
        state: &State,
        change: &Change,
        expected: Option<u64>,
    ) -> Result<AppliedChange, ChangeError> {
        if self.has_own_policy() {
            let made = state.change_policy(change.clone(), expected);
            return made.map_err(|Stale(revision)| ChangeError::Stale(revision));
        }
        let Some(bucket) = self.bucket().filter(|_| self.is_up()) else {
            let why = self.why_down();
            return Err(ChangeError::Gone(
                why.unwrap_or_else(|| "the connection was lost".to_owned()),
            ));
        };
        let changing = async {
            let _turn = self.live_policy.turn.lock().await;
            self.change_in_turn(state, &bucket, change, expected).await
        };
        let made = tokio::time::timeout(LIMIT, changing).await;
        made.unwrap_or_else(|_| Err(ChangeError::Unwritten(bucket.is_late())))
    }

    async fn change_in_turn(
        &self,
        state: &State,
        bucket: &Bucket,
        change: &Change,
        expected: Option<u64>,
    ) -> Result<AppliedChange, ChangeError> {
        for _ in 0..ATTEMPTS {
            let sequence = self.look(state, bucket).await.map_err(ChangeError::Unread)?;
            let (before, timers) = state.routing.policy.now();
            if expected.is_some_and(|expected| expected != before.revision) {
                return Err(ChangeError::Stale(before.revision));
            }
            let document = Document::next(state, self, change, &before, &timers);
            let written = bucket.put(KEY, document.bytes(), sequence).await;
            if written.map_err(ChangeError::Unwritten)?.is_none() {
                continue;
            }
            let adopted = document
                .adopted(state)
                .map_err(|why| ChangeError::Unwritten(bucket.unreadable(KEY, &why)))?;
            let timers = adopted.timers.clone();
            let made = state.adopt_policy(adopted).map(|(before, after)| AppliedChange {
                before,
                after,
                timers,
            });
            return made.ok_or_else(|| ChangeError::Stale(state.routing.policy.now().0.revision));
        }
        Err(ChangeError::Stale(state.routing.policy.now().0.revision))
    }

    /// Reverts a temporary change on all replicas, if it is due and no other replica has done so.
    pub async fn revert_policy(&self, state: &State) -> Option<(Arc<Revision>, Arc<Revision>)> {
        if self.has_own_policy() {
            return state.revert_policy();
        }
        let (now, _) = state.routing.policy.now();
        let patience = if self.leads() { Millis::ZERO } else { OVERDUE };
        let Some(change) = state
            .routing
            .policy
            .due(state.routing.clock.now().saturating_sub(patience))
        else {
            tokio::time::sleep(AGAIN).await;
            return None;
        };
        match self.change_policy(state, &change, Some(now.revision)).await {
            Ok(made) => Some((made.before, made.after)),
            Err(ChangeError::Stale(_)) => None,
            Err(error) => {
                debug!(%error, "the overdue revert failed");
                tokio::time::sleep(AGAIN).await;
                None
            }
        }
    }

    /// Reads the bucket and applies its policy. Writes this replica's policy if there is none. Returns the sequence.
    async fn look(&self, state: &State, bucket: &Bucket) -> Result<u64, BucketError> {
        loop {
            let Standing { sequence, value } = bucket.get(KEY).await?;
            let Some(value) = value else {
                let first = Document::first(state, self);
                if let Some(sequence) = bucket.put(KEY, first.bytes(), sequence).await? {
                    let adopted = first.adopted(state).map_err(|why| bucket.unreadable(KEY, &why))?;
                    state.adopt_policy(adopted);
                    return Ok(sequence);
                }
                continue;
            };
            let document = Document::read(&value).map_err(|why| bucket.unreadable(KEY, &why))?;
            let mut adopted = document
                .adopted(state)
                .map_err(|why| bucket.unreadable(KEY, &why))?;
            let is_known = state.routing.policy.are_of(adopted.lineage);
            let (now, _) = state.routing.policy.now();
            if !is_known || adopted.revision.revision > now.revision + 1 {
                adopted.earlier = self.earlier(state, bucket, &adopted).await?;
            }
            let newest = adopted.revision.revision;
            let is_missed = |known: &&Revision| known.revision > now.revision && known.revision < newest;
            let missed: Vec<Revision> = adopted.earlier.iter().filter(is_missed).cloned().collect();
            if let Some((before, after)) = state.adopt_policy(adopted)
                && (is_known || before.settings != after.settings)
            {
                let missed = missed.into_iter().filter(|_| is_known).map(Arc::new);
                let mut before = before;
                for after in missed.chain([after]) {
                    state.policy_changed_elsewhere(&before, &after).await;
                    before = after;
                }
            }
            return Ok(sequence);
        }
    }

    /// Returns the earlier revisions in the bucket. Invalid ones are left out.
    async fn earlier(
        &self,
        state: &State,
        bucket: &Bucket,
        newest: &Adopted,
    ) -> Result<Vec<Revision>, BucketError> {
        let values = bucket.history(KEY).await?;
        let documents = values.iter().filter_map(|value| Document::read(value).ok());
        let adopted = documents.filter_map(|document| document.adopted(state).ok());
        let of_bucket = adopted.filter(|adopted| adopted.lineage == newest.lineage);
        Ok(of_bucket.map(|adopted| adopted.revision).collect())
    }

    async fn look_again(&self, state: &State, bucket: &Bucket) -> bool {
        let looked = {
            let _turn = self.live_policy.turn.lock().await;
            match self.look(state, bucket).await {
                Ok(_) => Looked::Found,
                // A shared policy does not become each replica's own because the server was replaced.
                Err(BucketError::NoJetStream) if state.routing.policy.is_shared() => {
                    Looked::Failed(bucket.is_lost())
                }
                Err(error) => Looked::Failed(error),
            }
        };
        let is_found = looked == Looked::Found;
        let before = std::mem::replace(&mut *self.live_policy.looked.lock(), looked.clone());
        if before != looked {
            match looked {
                Looked::Failed(error @ BucketError::NoJetStream) => {
                    warn!(%error, "the live policy is not shared");
                }
                Looked::Failed(error) => warn!(%error, "policy changes are refused"),
                _ => info!(bucket = self.settings.cluster, "the live policy is shared"),
            }
        }
        is_found
    }
}

pub(super) async fn follow(state: Arc<State>, bus: Arc<Bus>) {
    let Some(bucket) = bus.bucket() else {
        return pending().await;
    };
    loop {
        match bucket.changes(KEY).await {
            Ok(mut told) => while look_and_wait(&state, &bus, &bucket, &mut told).await {},
            Err(error) => warn!(%error, "policy changes cannot be watched"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Reads the bucket and waits for the next write. Returns whether the subscription is alive.
async fn look_and_wait(state: &State, bus: &Bus, bucket: &Bucket, told: &mut watch::Receiver<()>) -> bool {
    let mut pause = AGAIN;
    if bus.is_up() {
        let is_found = bus.look_again(state, bucket).await;
        if is_found || bus.has_own_policy() {
            put_configured(state, bus).await;
            pause = LOOK;
        }
    }
    let next = Instant::now() + BREATH;
    tokio::select! {
        heard = told.changed() => {
            tokio::time::sleep_until(next).await;
            heard.is_ok()
        }
        () = bus.live_policy.wanted.notified() => true,
        () = state.routing.policy.wait_until_reconfigured() => true,
        () = tokio::time::sleep(pause) => true,
    }
}

/// Writes a changed `[routing]` of this replica's configuration as a revision for all replicas, unless they have it.
async fn put_configured(state: &State, bus: &Bus) {
    let Some(change) = state.routing.policy.to_configure() else {
        return;
    };
    if state.routing.policy.now().0.settings == change.settings
        || state.routing.policy.was_configured(&change)
    {
        state.routing.policy.configured_is_in_force(&change);
        return;
    }
    match bus.change_policy(state, &change, None).await {
        Ok(made) => {
            state.routing.policy.configured_is_in_force(&change);
            let happened = AuditRecord::by_router("config.reload", &made.before, &made.after);
            state.operations.operator.audit.record(happened).await;
        }
        Err(error) => info!(%error, "[routing] of the configuration has changed but is not applied yet"),
    }
}
