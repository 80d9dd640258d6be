//! What several replicas of the router before the same workers tell each other, over NATS.
//!
//! Replicas that know nothing of each other all send to the same idle worker, and find a conversation's prefix on the
//! worker where *another* one sent it only by luck: up to twice the p95 (docs/scaling.md). So each says of its turns, in
//! some milliseconds, where they go, when they begin and what they leave; the others hold that in their own books as they
//! hold their own turns: in what waits on a worker, in ρ, in the mirror of its cache.
//!
//! | file | |
//! |---|---|
//! | [`turns`] | what a request says, from its own thread: one push into a bounded queue |
//! | [`speak`] | the task that makes messages of it, one each few milliseconds at the most |
//! | [`wire`] | the messages: binary, no text of anybody's |
//! | [`peers`] | what is heard, held in the books |
//! | [`link`] | the connection to NATS |
//! | [`bucket`] | what all replicas have in common, in JetStream |
//! | [`live_policy`] | the live policy, which stands there |
//! | [`calibrations`] | what was measured of workers, which stands there too |
//! | [`leader`] | who of all does what only one should |
//! | [`join`] | what a replica that starts takes from another |
//!
//! # What may be lost
//! NATS delivers at most once, and queues here are bounded. So every message has a number, and each second a replica says
//! which turns it has under way: what it does not name is over, what was not known is. Whoever has said nothing for three
//! seconds is gone, and all that it had. Without a server every replica works by itself, and says so.
//!
//! # Whose clock
//! Nobody's: a message says how long ago things happened when it went out.

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

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
use self::turns::Said;
use crate::metrics::BusCounters;

/// What requests have said and no message has yet: at 2,000 turns a second, some hundred milliseconds of it.
const QUEUE: usize = 1024;

/// This replica among the others.
#[derive(Debug)]
pub struct Bus {
    /// What was configured.
    pub settings: config::Fleet,
    /// What it is called.
    pub name: String,
    /// This process: no two have the same.
    pub id: u64,
    /// The others.
    pub peers: Peers,
    /// What is counted.
    pub counters: BusCounters,
    queue: mpsc::Sender<Said>,
    /// Held by the task that speaks.
    waiting: tokio::sync::Mutex<mpsc::Receiver<Said>>,
    next_turn: AtomicU64,
    /// Somebody should hear soon what is under way.
    roll_wanted: Notify,
    /// What all replicas have in common, once there is a way to NATS.
    bucket: OnceLock<Bucket>,
    live_policy: LivePolicy,
    calibrations: Calibrations,
    lease: Lease,
    /// Whether it has asked the others what they know.
    has_joined: AtomicBool,
    joined: Mutex<Option<Joined>>,
    is_up: AtomicBool,
    link: Mutex<Link>,
}

/// The connection, as people are told of it.
#[derive(Clone, Debug, Default)]
struct Link {
    /// When it came up or went down.
    since: Option<Millis>,
    error: Option<String>,
}

/// How this replica and the others are.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BusState {
    /// What this replica is called.
    pub replica: String,
    /// What the replicas have in common.
    pub cluster: String,
    /// Whether NATS is there. Without it this replica works by itself.
    pub connected: bool,
    /// For how many seconds that has been so.
    pub since_s: f64,
    /// Why it is not there, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The live policy.
    pub policy: LivePolicyState,
    /// Which replica does what only one should, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// What this replica took from another one when it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
    /// The other replicas that were heard of within seconds.
    pub peers: Vec<PeerState>,
}

impl Bus {
    /// Not connected yet.
    #[must_use]
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
            bucket: OnceLock::new(),
            live_policy: LivePolicy::default(),
            calibrations: Calibrations::default(),
            lease: Lease::default(),
            has_joined: AtomicBool::new(false),
            joined: Mutex::new(None),
            is_up: AtomicBool::new(false),
            link: Mutex::new(Link::default()),
        }
    }

    /// Whether NATS is there.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// NATS came or went. Returns whether that is news.
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

    /// Why NATS is not there. Returns whether that is news.
    fn set_error(&self, error: String) -> bool {
        let mut link = self.link.lock();
        let is_news = link.error.as_ref() != Some(&error);
        link.error = Some(error);
        is_news
    }

    /// Why NATS is not there, in words.
    #[must_use]
    pub fn why_down(&self) -> Option<String> {
        self.link.lock().error.clone()
    }

    /// How it is, for people.
    #[must_use]
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

/// What a worker is on the bus: every replica calls it alike.
fn worker_key(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// A number that no other process has.
fn random_id() -> u64 {
    let mut bytes = [0; 8];
    // Where the machine has no chance to give, the time and the process have to do.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        let seed = (crate::operator::unix_ms(), std::process::id());
        return xxh3_64(format!("{seed:?}").as_bytes());
    }
    u64::from_le_bytes(bytes)
}

/// What the machine is called: on Kubernetes, the pod.
fn machine_name() -> String {
    let known = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = known.chars().filter(char::is_ascii_graphic).take(64).collect();
    if name.is_empty() {
        "tailroute".to_owned()
    } else {
        name
    }
}

/// Connects, speaks and hears, for as long as the task lives.
pub async fn run(app: Arc<crate::app::App>) {
    if let Some(bus) = app.bus.clone() {
        link::run(app, bus).await;
    }
}
