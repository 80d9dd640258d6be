//! The live policy of all replicas: one key in the fleet's bucket, with compare-and-set and history.
//!
//! Whoever changes it names the revision that is changed, and of two at once one is told so, on whatever replica. A change is
//! in force here when the bucket has it, and elsewhere within milliseconds: each replica hears what is written there, and
//! looks every two seconds anyway, and as soon as NATS is back. While it is gone the policy stays what it was, and a change
//! is refused: it would be in force on one replica alone.
//!
//! Who finds nothing there writes what is in force here: at the first start of a fleet, what is configured. Who comes later
//! takes what is there. A server without JetStream has no bucket: then each replica's policy is its own.
//!
//! A write that was not answered may have been made all the same. Whoever asked for it is told so, and when it is found in
//! the bucket it is in force and in the audit log like another replica's.

mod document;

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
use crate::app::App;
use crate::operator::audit::Happened;
use crate::operator::revisions::{Adopted, Change, Made, Revision, Stale};

/// Where it stands in the bucket.
const KEY: &str = "policy";
/// Between two looks at the bucket.
const LOOK: Duration = Duration::from_secs(2);
/// Between two attempts, if it does not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// Who does not lead ends a change that was for a time only when it is so long overdue.
const OVERDUE: Millis = Millis(6_000.0);
/// For a change to be made.
const LIMIT: Duration = Duration::from_secs(5);
/// Attempts of a change that names no revision, if others come in between.
const ATTEMPTS: usize = 4;

/// What is known of the policy in the bucket.
#[derive(Debug, Default)]
pub(super) struct LivePolicy {
    /// Held while the bucket is looked at or changed: one after the other.
    turn: tokio::sync::Mutex<()>,
    looked: Mutex<Looked>,
    /// Somebody should look.
    pub(super) wanted: Notify,
}

/// What came of the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Looked {
    /// There was none.
    #[default]
    Never,
    Found,
    Failed(BucketError),
}

/// Where the live policy is, for people.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LivePolicyState {
    /// Whether it is that of all replicas, in the fleet's bucket; otherwise it is this replica's own.
    pub shared: bool,
    /// Whether it can be changed now.
    pub changeable: bool,
    /// Why the bucket is of no use, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Another revision is in force.
    #[error("revision {0} is in force by now")]
    Stale(u64),
    /// NATS is not there.
    #[error(
        "NATS is not there ({0}), and a change would be in force on this replica alone: nothing was changed. Try again when \
         GET /admin/v1/replicas says that it is connected"
    )]
    Gone(String),
    /// The bucket cannot be read.
    #[error("{0}; a change would be in force on this replica alone: nothing was changed")]
    Unread(BucketError),
    /// The bucket did not say that it has it.
    #[error("{0}; it is not known whether the policy was changed: GET it when NATS answers again")]
    Unwritten(BucketError),
}

impl Bus {
    /// Whether the policy is this replica's own, since there is no bucket.
    #[must_use]
    pub fn has_own_policy(&self) -> bool {
        *self.live_policy.looked.lock() == Looked::Failed(BucketError::NoJetStream)
    }

    /// Where the policy is.
    #[must_use]
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

    /// Changes the policy of all replicas, if `expected` is the revision that is changed, or none is expected.
    ///
    /// # Errors
    /// If another revision is in force, or the bucket cannot be reached.
    pub async fn change_policy(
        &self,
        app: &App,
        change: &Change,
        expected: Option<u64>,
    ) -> Result<Made, ChangeError> {
        if self.has_own_policy() {
            let made = app.change_policy(change.clone(), expected);
            return made.map_err(|Stale(revision)| ChangeError::Stale(revision));
        }
        let Some(bucket) = self.bucket.get().filter(|_| self.is_up()) else {
            let why = self.why_down();
            return Err(ChangeError::Gone(
                why.unwrap_or_else(|| "the connection was lost".to_owned()),
            ));
        };
        let changing = async {
            let _turn = self.live_policy.turn.lock().await;
            self.change_in_turn(app, bucket, change, expected).await
        };
        let made = tokio::time::timeout(LIMIT, changing).await;
        made.unwrap_or_else(|_| Err(ChangeError::Unwritten(bucket.is_late())))
    }

    async fn change_in_turn(
        &self,
        app: &App,
        bucket: &Bucket,
        change: &Change,
        expected: Option<u64>,
    ) -> Result<Made, ChangeError> {
        for _ in 0..ATTEMPTS {
            let sequence = self.look(app, bucket).await.map_err(ChangeError::Unread)?;
            let (before, pending) = app.policy.now();
            if expected.is_some_and(|expected| expected != before.revision) {
                return Err(ChangeError::Stale(before.revision));
            }
            let document = Document::next(app, self, change, (&before, pending.as_ref()));
            let written = bucket.put(KEY, document.bytes(), sequence).await;
            if written.map_err(ChangeError::Unwritten)?.is_none() {
                continue;
            }
            let adopted = document
                .adopted(app)
                .map_err(|why| ChangeError::Unwritten(bucket.unreadable(KEY, &why)))?;
            let pending = adopted.pending.clone();
            let made = app.adopt_policy(adopted).map(|(before, after)| Made {
                before,
                after,
                pending,
            });
            return made.ok_or_else(|| ChangeError::Stale(app.policy.now().0.revision));
        }
        Err(ChangeError::Stale(app.policy.now().0.revision))
    }

    /// Puts an earlier policy in force again on all replicas, if that is due, and no other replica has done it.
    pub async fn revert_policy(&self, app: &App) -> Option<(Arc<Revision>, Arc<Revision>)> {
        if self.has_own_policy() {
            return app.revert_policy();
        }
        let (now, _) = app.policy.now();
        let patience = if self.leads() { Millis::ZERO } else { OVERDUE };
        let Some(change) = app.policy.due(app.clock.now().saturating_sub(patience)) else {
            tokio::time::sleep(AGAIN).await;
            return None;
        };
        match self.change_policy(app, &change, Some(now.revision)).await {
            Ok(made) => Some((made.before, made.after)),
            Err(ChangeError::Stale(_)) => None,
            Err(error) => {
                debug!(%error, "the policy should have gone back by now");
                tokio::time::sleep(AGAIN).await;
                None
            }
        }
    }

    /// Looks what is in the bucket, and takes it. Returns its place. Who finds nothing writes what is in force here.
    async fn look(&self, app: &App, bucket: &Bucket) -> Result<u64, BucketError> {
        loop {
            let Standing { sequence, value } = bucket.get(KEY).await?;
            let Some(value) = value else {
                let first = Document::first(app, self);
                if let Some(sequence) = bucket.put(KEY, first.bytes(), sequence).await? {
                    let adopted = first.adopted(app).map_err(|why| bucket.unreadable(KEY, &why))?;
                    app.adopt_policy(adopted);
                    return Ok(sequence);
                }
                continue;
            };
            let document = Document::read(&value).map_err(|why| bucket.unreadable(KEY, &why))?;
            let mut adopted = document
                .adopted(app)
                .map_err(|why| bucket.unreadable(KEY, &why))?;
            let is_known = app.policy.are_of(adopted.lineage);
            let (now, _) = app.policy.now();
            if !is_known || adopted.revision.revision > now.revision + 1 {
                adopted.earlier = self.earlier(app, bucket, &adopted).await?;
            }
            let newest = adopted.revision.revision;
            let is_missed = |known: &&Revision| known.revision > now.revision && known.revision < newest;
            let missed: Vec<Revision> = adopted.earlier.iter().filter(is_missed).cloned().collect();
            if let Some((before, after)) = app.adopt_policy(adopted)
                && (is_known || before.settings != after.settings)
            {
                let missed = missed.into_iter().filter(|_| is_known).map(Arc::new);
                let mut before = before;
                for after in missed.chain([after]) {
                    app.policy_changed_elsewhere(&before, &after).await;
                    before = after;
                }
            }
            return Ok(sequence);
        }
    }

    /// What the bucket remembers from before. What cannot be read is left out.
    async fn earlier(
        &self,
        app: &App,
        bucket: &Bucket,
        newest: &Adopted,
    ) -> Result<Vec<Revision>, BucketError> {
        let values = bucket.history(KEY).await?;
        let documents = values.iter().filter_map(|value| Document::read(value).ok());
        let adopted = documents.filter_map(|document| document.adopted(app).ok());
        let of_bucket = adopted.filter(|adopted| adopted.lineage == newest.lineage);
        Ok(of_bucket.map(|adopted| adopted.revision).collect())
    }

    /// Looks, and says when what comes of it is another thing than before.
    async fn look_again(&self, app: &App, bucket: &Bucket) -> bool {
        let looked = {
            let _turn = self.live_policy.turn.lock().await;
            match self.look(app, bucket).await {
                Ok(_) => Looked::Found,
                // What was in common does not become each one's own because a server was changed.
                Err(BucketError::NoJetStream) if app.policy.is_shared() => Looked::Failed(bucket.is_lost()),
                Err(error) => Looked::Failed(error),
            }
        };
        let is_found = looked == Looked::Found;
        let before = std::mem::replace(&mut *self.live_policy.looked.lock(), looked.clone());
        if before != looked {
            match looked {
                Looked::Failed(error @ BucketError::NoJetStream) => {
                    warn!(%error, "each replica's live policy is its own");
                }
                Looked::Failed(error) => warn!(%error, "changes of the policy are refused"),
                _ => info!(
                    bucket = self.settings.cluster,
                    "replicas have their live policy in common"
                ),
            }
        }
        is_found
    }
}

/// Follows the bucket for as long as the task lives.
pub(super) async fn follow(app: Arc<App>, bus: Arc<Bus>) {
    let Some(bucket) = bus.bucket.get() else { return };
    loop {
        match bucket.changes(KEY).await {
            Ok(mut told) => while look_and_wait(&app, &bus, bucket, &mut told).await {},
            Err(error) => warn!(%error, "changes of the policy cannot be heard"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns whether more can be heard.
async fn look_and_wait(app: &App, bus: &Bus, bucket: &Bucket, told: &mut watch::Receiver<()>) -> bool {
    let mut pause = AGAIN;
    if bus.is_up() {
        let is_found = bus.look_again(app, bucket).await;
        if is_found || bus.has_own_policy() {
            put_configured(app, bus).await;
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
        () = app.policy.is_reconfigured() => true,
        () = tokio::time::sleep(pause) => true,
    }
}

/// `[routing]` of this replica's configuration has changed: that is a revision for all, unless they have it.
async fn put_configured(app: &App, bus: &Bus) {
    let Some(change) = app.policy.to_configure() else {
        return;
    };
    if app.policy.now().0.settings == change.settings || app.policy.was_configured(&change.settings) {
        app.policy.configured_is_in_force(&change.settings);
        return;
    }
    match bus.change_policy(app, &change, None).await {
        Ok(made) => {
            app.policy.configured_is_in_force(&change.settings);
            let happened = Happened::by_router("config.reload", &made.before, &made.after);
            app.operator.audit.record(happened).await;
        }
        Err(error) => info!(%error, "[routing] of the configuration has changed, and is not in force yet"),
    }
}
