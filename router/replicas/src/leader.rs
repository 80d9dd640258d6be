//! Leader election by a lease in the bucket.
//!
//! The leader rewrites its key each second by compare-and-set. A lease that was not rewritten for four seconds by a
//! watcher's own clock is free; of several replicas that then write it, one succeeds. The leader considers itself
//! leader only until three seconds after the start of its last successful write, so there are never two. For what it
//! does, see docs/scaling.md, "The leader".

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{debug, info};

use super::Bus;
use super::bucket::{Bucket, BucketError, Standing};
use state::State;

const KEY: &str = "leader";
/// Interval between a leader's renewals of the lease.
const RENEW: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(500);
/// Time for which a leader considers itself leader after a write.
const HELD: Duration = Duration::from_secs(3);
/// Time without a write after which the lease is free.
const EXPIRED: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub(super) struct Lease(Mutex<LeaseState>);

#[derive(Debug, Default)]
struct LeaseState {
    /// End of this replica's leadership.
    until: Option<Instant>,
    /// Sequence of the lease in the bucket, the time at which it was first seen, and the holder's name.
    seen: Option<(u64, Instant, String)>,
}

/// The lease as written in the bucket.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    /// Id of the holding process; 0 if released.
    id: u64,
    replica: String,
}

impl Lease {
    fn leads(&self) -> bool {
        self.0.lock().until.is_some_and(|until| Instant::now() < until)
    }

    fn leader(&self) -> Option<String> {
        let state = self.0.lock();
        let seen = state.seen.as_ref();
        let seen = seen.filter(|(_, since, name)| since.elapsed() < EXPIRED && !name.is_empty());
        seen.map(|(_, _, name)| name.clone())
    }

    /// Records the entry in the bucket. Returns whether this replica should write it.
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

    /// Records a successful write that began at `begun`. Returns whether this replica became leader.
    fn wrote(&self, sequence: u64, begun: Instant, name: &str) -> bool {
        let mut state = self.0.lock();
        let was = state.until.replace(begun + HELD);
        state.seen = Some((sequence, Instant::now(), name.to_owned()));
        was.is_none_or(|until| until < begun)
    }

    fn lost(&self) {
        self.0.lock().until = None;
    }
}

impl Bus {
    /// Returns whether this replica is the leader.
    pub fn leads(&self) -> bool {
        self.lease.leads()
    }

    pub(super) fn leader(&self) -> Option<String> {
        self.lease.leader()
    }

    /// Renews or takes the lease, or records its holder.
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
                    info!("this replica is the leader");
                }
            }
            _ => self.lease.lost(),
        }
        Ok(())
    }
}

pub(super) async fn lead(state: Arc<State>, bus: Arc<Bus>) {
    let Some(bucket) = bus.bucket() else {
        return pending().await;
    };
    loop {
        if bus.is_up()
            && let Err(error) = bus.renew(&bucket, state.operations.is_draining()).await
        {
            debug!(%error, "cannot renew the lease");
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
    async fn a_lease_is_free_after_four_seconds_without_a_write() {
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
    async fn leadership_ends_before_the_lease_is_free() {
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
