//! Who of the replicas does what only one should: a lease in the fleet's bucket.
//!
//! Whoever leads writes its key anew each second, by compare-and-set. The others watch it: a lease that has not been written
//! for four seconds, by the watcher's own clock, is anybody's, and of those that write it then one succeeds. The leader takes
//! itself for one only until three seconds after it has begun its last write that succeeded, so there are never two.
//! One that is told to end gives the lease back.
//!
//! What it does: it ends changes of the policy that were for a time. The others do that only where it is long overdue. Probes are
//! nobody's alone: whether a worker is reached from here nobody else can say.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{debug, info};

use super::Bus;
use super::bucket::{Bucket, BucketError, Standing};
use crate::app::App;

/// Where it stands in the bucket.
const KEY: &str = "leader";
/// Between two writes, or two looks.
const RENEW: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(500);
/// A leader takes itself for one for so long after a write.
const HELD: Duration = Duration::from_secs(3);
/// Others take the lease when it has not been written for so long.
const EXPIRED: Duration = Duration::from_secs(4);

/// The lease, as far as it is known here.
#[derive(Debug, Default)]
pub(super) struct Lease(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Until when this replica leads.
    until: Option<Instant>,
    /// Who leads, as the bucket has it, and since when that has not changed.
    seen: Option<(u64, Instant, String)>,
}

/// The lease, as it stands in the bucket.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    /// The process; 0: it was given back.
    id: u64,
    replica: String,
}

impl Lease {
    fn leads(&self) -> bool {
        self.0.lock().until.is_some_and(|until| Instant::now() < until)
    }

    /// Who leads, if anybody is known to.
    fn leader(&self) -> Option<String> {
        let state = self.0.lock();
        let seen = state.seen.as_ref();
        let seen = seen.filter(|(_, since, name)| since.elapsed() < EXPIRED && !name.is_empty());
        seen.map(|(_, _, name)| name.clone())
    }

    /// Takes in what stands in the bucket. Returns whether it is to be written by this replica.
    fn look(&self, own: u64, standing: &Standing) -> bool {
        let value = standing.value.as_deref().unwrap_or_default();
        let written = serde_json::from_slice::<Written>(value).ok();
        let is_free = written.as_ref().is_none_or(|written| written.id == 0);
        let is_own = written.as_ref().is_some_and(|written| written.id == own);
        let name = written.filter(|written| written.id != 0);
        let name = name.map(|written| written.replica).unwrap_or_default();
        let mut state = self.0.lock();
        let known = state
            .seen
            .take()
            .filter(|(sequence, ..)| *sequence == standing.sequence);
        let since = known.map_or_else(Instant::now, |(_, since, _)| since);
        state.seen = Some((standing.sequence, since, name));
        is_free || is_own || since.elapsed() >= EXPIRED
    }

    /// This replica wrote it, beginning then. Returns whether that is news.
    fn wrote(&self, sequence: u64, begun: Instant, name: &str) -> bool {
        let mut state = self.0.lock();
        let was = state.until.replace(begun + HELD);
        state.seen = Some((sequence, Instant::now(), name.to_owned()));
        was.is_none_or(|until| until < begun)
    }

    /// Somebody else did, or it was given back.
    fn lost(&self) {
        self.0.lock().until = None;
    }
}

impl Bus {
    /// Whether this replica leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.lease.leads()
    }

    /// What the replica is called that leads, if one does.
    #[must_use]
    pub(super) fn leader(&self) -> Option<String> {
        self.lease.leader()
    }

    /// Renews the lease, takes it, or sees who has it.
    async fn renew(&self, bucket: &Bucket, ends: bool) -> Result<(), BucketError> {
        let begun = Instant::now();
        let standing = bucket.get(KEY).await?;
        let may_write = self.lease.look(self.id, &standing);
        if !may_write || (ends && !self.leads()) {
            if !may_write {
                self.lease.lost();
            }
            return Ok(());
        }
        let written = Written {
            id: if ends { 0 } else { self.id },
            replica: self.name.clone(),
        };
        let value = serde_json::to_vec(&written).unwrap_or_default();
        match bucket.put(KEY, value, standing.sequence).await? {
            Some(sequence) if !ends => {
                if self.lease.wrote(sequence, begun, &self.name) {
                    info!("this replica leads");
                }
            }
            _ => self.lease.lost(),
        }
        Ok(())
    }
}

/// Holds the lease, or waits for it, for as long as the task lives.
pub(super) async fn lead(app: Arc<App>, bus: Arc<Bus>) {
    let Some(bucket) = bus.bucket.get() else { return };
    loop {
        if bus.is_up()
            && let Err(error) = bus.renew(bucket, app.is_draining()).await
        {
            debug!(%error, "the lease is not known");
        }
        tokio::time::sleep(if bus.leads() { RENEW } else { LOOK }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(sequence: u64, id: u64) -> Standing {
        let written = Written {
            id,
            replica: format!("router-{id}"),
        };
        Standing {
            sequence,
            value: Some(serde_json::to_vec(&written).unwrap().into()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_when_it_was_not_written_for_four_seconds_and_not_before() {
        let lease = Lease::default();
        assert!(!lease.look(1, &standing(7, 2)));
        assert_eq!(lease.leader().as_deref(), Some("router-2"));
        tokio::time::advance(EXPIRED - Duration::from_millis(1)).await;
        assert!(!lease.look(1, &standing(7, 2)));
        assert!(!lease.look(1, &standing(8, 2)), "it was written");
        tokio::time::advance(EXPIRED).await;
        assert_eq!(lease.leader(), None);
        assert!(lease.look(1, &standing(8, 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_leads_no_longer_than_others_leave_it_the_lease() {
        let lease = Lease::default();
        assert!(lease.look(1, &Standing::default()), "nobody has it");
        assert!(lease.wrote(1, Instant::now(), "router-1") && lease.leads());
        tokio::time::advance(RENEW).await;
        assert!(lease.look(1, &standing(1, 1)), "its own");
        assert!(!lease.wrote(2, Instant::now(), "router-1"), "no news");
        tokio::time::advance(HELD).await;
        assert!(!lease.leads());
        assert!(HELD < EXPIRED);
        assert!(lease.look(2, &standing(3, 0)), "given back");
    }
}
