//! Messages between replicas of the router that share workers, over NATS (docs/scaling.md).
//!
//! Each replica reports within milliseconds where its turns go, when they begin and what they leave in the cache. The
//! others account for them like for their own turns: in a worker's queue, in ρ, in the mirror of its cache.
//!
//! NATS delivers at most once, and queues here are bounded. So every message has a number, and each second a replica
//! lists its turns in progress (the roll call): turns not listed have ended, unknown ones are added. Clocks are not
//! compared: a message contains the age of events when it was sent.

pub mod bucket;
pub mod calibrations;
pub mod join;
pub mod leader;
pub mod link;
pub mod live_policy;
pub mod peers;
mod speak;
#[cfg(test)]
mod tests;
pub mod turns;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use xxhash_rust::xxh3::xxh3_64;

use self::bucket::Bucket;
use self::calibrations::Calibrations;
use self::join::Joined;
use self::leader::Lease;
use self::live_policy::{LivePolicy, LivePolicyState};
use self::peers::{PeerState, Peers};
use self::turns::TurnReport;
use metrics::{BusCounters, BusGauges};

/// Largest number of reports that are not in a message yet: some hundred milliseconds' worth at 2,000 turns a second.
const QUEUE: usize = 1024;

/// This replica on the bus.
#[derive(Debug)]
pub struct Bus {
    pub settings: config::Fleet,
    pub name: String,
    /// Random id of this process.
    pub id: u64,
    pub peers: Peers,
    pub counters: BusCounters,
    queue: mpsc::Sender<TurnReport>,
    /// Receiving end of the queue, locked by the task that sends.
    waiting: tokio::sync::Mutex<mpsc::Receiver<TurnReport>>,
    next_turn: AtomicU64,
    /// Notification that a roll call is to be sent soon.
    roll_wanted: Notify,
    /// The bucket of the present client; `None` without one.
    bucket: Mutex<Option<Arc<Bucket>>>,
    live_policy: LivePolicy,
    calibrations: Calibrations,
    lease: Lease,
    has_joined: AtomicBool,
    joined: Mutex<Option<Joined>>,
    is_up: AtomicBool,
    link: Mutex<BusLink>,
}

#[derive(Clone, Debug, Default)]
struct BusLink {
    /// Time at which the connection was established or lost.
    since: Option<Millis>,
    error: Option<String>,
}

/// The state of this replica and the others.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BusState {
    /// Name of this replica.
    pub replica: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Whether NATS is connected. Without a connection this replica works alone.
    pub connected: bool,
    /// Seconds since the connection was established or lost; since the start, before either.
    pub since_s: f64,
    /// Reason why NATS is not connected; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// State of the live policy.
    pub policy: LivePolicyState,
    /// Name of the leader; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Index that this replica took from another one at its start; absent if it took none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
    /// Other replicas whose last message is not older than seconds.
    pub peers: Vec<PeerState>,
}

impl Bus {
    /// Creates a bus that is not connected.
    pub fn new(settings: &config::Fleet, counters: BusCounters) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        Self {
            settings: settings.clone(),
            name: settings.replica.clone().unwrap_or_else(machine_name),
            id: random_id(),
            peers: Peers::default(),
            counters,
            queue,
            waiting: tokio::sync::Mutex::new(waiting),
            next_turn: AtomicU64::new(0),
            roll_wanted: Notify::new(),
            bucket: Mutex::new(None),
            live_policy: LivePolicy::default(),
            calibrations: Calibrations::default(),
            lease: Lease::default(),
            has_joined: AtomicBool::new(false),
            joined: Mutex::new(None),
            is_up: AtomicBool::new(false),
            link: Mutex::new(BusLink::default()),
        }
    }

    /// Returns whether NATS is connected.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    fn bucket(&self) -> Option<Arc<Bucket>> {
        self.bucket.lock().clone()
    }

    fn use_bucket(&self, bucket: Option<Bucket>) {
        *self.bucket.lock() = bucket.map(Arc::new);
    }

    /// Records whether NATS is connected. Returns whether that changed.
    fn set_up(&self, now: Millis, up: bool) -> bool {
        let mut link = self.link.lock();
        let is_news = self.is_up.swap(up, Ordering::AcqRel) != up;
        if is_news || link.since.is_none() {
            link.since = Some(now);
        }
        if up {
            link.error = None;
        }
        is_news
    }

    /// Records why NATS is not connected. Returns whether that changed.
    fn set_error(&self, error: String) -> bool {
        let mut link = self.link.lock();
        let is_news = link.error.as_ref() != Some(&error);
        link.error = Some(error);
        is_news
    }

    /// Returns why NATS is not connected.
    pub fn why_down(&self) -> Option<String> {
        self.link.lock().error.clone()
    }

    pub fn gauges(&self) -> BusGauges {
        let (peers, in_flight) = self.peers.count();
        BusGauges {
            connected: self.is_up(),
            leads: self.leads(),
            peers,
            in_flight,
        }
    }

    /// Returns the state, for display.
    pub fn state(&self, now: Millis) -> BusState {
        let link = self.link.lock().clone();
        BusState {
            replica: self.name.clone(),
            cluster: self.settings.cluster.clone(),
            connected: self.is_up(),
            since_s: (now - link.since.unwrap_or_default()).0 / 1e3,
            error: link.error,
            policy: self.live_policy_state(),
            leader: self.leader(),
            joined: self.joined.lock().clone(),
            peers: self.peers.state(now),
        }
    }
}

/// Returns a worker's key on the bus, the same on every replica.
fn worker_key(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

fn random_id() -> u64 {
    let mut bytes = [0; 8];
    // Without a random source, the time and the process id have to do.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        let seed = (operator::unix_ms(), std::process::id());
        return xxh3_64(format!("{seed:?}").as_bytes());
    }
    u64::from_le_bytes(bytes)
}

/// Returns the host name; on Kubernetes, the pod's name.
fn machine_name() -> String {
    let known = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = known.chars().filter(char::is_ascii_graphic).take(64).collect();
    if name.is_empty() {
        "tailroute".to_owned()
    } else {
        name
    }
}
