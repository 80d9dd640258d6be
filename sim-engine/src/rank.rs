//! A running rank: the scheduler tied to a clock. Every access advances the scheduler to the current time and notifies
//! waiting requests; a driver task does so when the next event is due. Virtual times are exact however late the driver
//! wakes. Progress between two wake-ups is one piece of a stream, so fast decoding costs one write per millisecond.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use policy::units::Millis;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::EngineConfig;
use crate::events::log::EventLog;
use crate::events::publish::KvEventSource;
use crate::fault::Fault;
use crate::responses::Responses;
use crate::scheduler::{Overloaded, Progress, RequestId, Scheduler, Submission};
use crate::stats::{Captured, Stats};

/// Number of captured requests kept.
const CAPTURED: usize = 256;

pub(crate) struct State {
    pub(crate) scheduler: Scheduler,
    watchers: FxHashMap<RequestId, watch::Sender<Progress>>,
    /// The driver's next wake-up.
    armed: Option<Millis>,
}

pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) kv_source: Option<KvEventSource>,
    pub(crate) responses: Arc<Responses>,
    received: AtomicU64,
    faults_injected: AtomicU64,
    pub(crate) alive: watch::Sender<bool>,
    started: Instant,
    state: Mutex<State>,
    wake: Notify,
    /// Notified when a count may have changed.
    pub(crate) changed: Notify,
    fault: RwLock<Fault>,
    /// Number of faults set, so that the end of a timed death does not undo a later fault.
    fault_number: AtomicU64,
    events: Option<Arc<EventLog>>,
    captured: Mutex<VecDeque<Captured>>,
    /// Wall nanoseconds between the tokens of a fast engine's streams.
    pace: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        config: EngineConfig,
        kv_source: Option<KvEventSource>,
        events: Option<Arc<EventLog>>,
        responses: Arc<Responses>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                scheduler: Scheduler::new(&config),
                watchers: FxHashMap::default(),
                armed: None,
            }),
            config,
            kv_source,
            responses,
            received: AtomicU64::new(0),
            faults_injected: AtomicU64::new(0),
            alive: watch::Sender::new(true),
            started: Instant::now(),
            wake: Notify::new(),
            changed: Notify::new(),
            fault: RwLock::default(),
            fault_number: AtomicU64::new(0),
            events,
            captured: Mutex::default(),
            pace: AtomicU64::new(0),
        }
    }

    pub(crate) fn pace(&self) -> Duration {
        Duration::from_nanos(self.pace.load(Ordering::Relaxed))
    }

    pub(crate) fn set_pace(&self, gap: Duration) {
        let nanos = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX);
        self.pace.store(nanos, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> usize {
        self.with(|scheduler, _| scheduler.waiting() + scheduler.running())
    }

    /// Advances the scheduler, applies `act` to it, and notifies waiting requests and the driver.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Scheduler, Millis) -> R) -> R {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now = Millis(self.started.elapsed().as_secs_f64() * 1000.0 * self.config.time_scale);
        state.scheduler.advance(now);
        let result = act(&mut state.scheduler, now);
        self.publish(state);
        result
    }

    fn publish(&self, state: &mut State) {
        let State {
            scheduler,
            watchers,
            armed,
        } = state;
        let mut told = false;
        scheduler.drain_progress(|id, progress| {
            told = true;
            if progress.done {
                if let Some(watcher) = watchers.remove(&id) {
                    watcher.send_replace(progress);
                }
            } else if let Some(watcher) = watchers.get(&id) {
                watcher.send_replace(progress);
            }
        });
        if let Some(log) = &self.events {
            log.append(unix_seconds(), &scheduler.memory.take_events());
        }
        if told {
            self.changed.notify_waiters();
        }
        let next = scheduler.next_event();
        if next.is_some_and(|next| armed.is_none_or(|armed| next < armed)) {
            *armed = next;
            self.wake.notify_one();
        }
    }

    pub(crate) fn submit(self: &Arc<Self>, request: Submission) -> Result<Ticket, Overloaded> {
        let (sender, progress) = watch::channel(Progress::default());
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now = Millis(self.started.elapsed().as_secs_f64() * 1000.0 * self.config.time_scale);
        let id = state.scheduler.submit(now, request)?;
        state.watchers.insert(id, sender);
        self.publish(state);
        drop(guard);
        self.changed.notify_waiters();
        Ok(Ticket {
            progress,
            hold: Hold {
                shared: Arc::clone(self),
                id,
                injected: false,
            },
        })
    }

    /// Counts an arrival. Returns its number.
    pub(crate) fn receive(&self) -> u64 {
        let number = self.received.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
        number
    }

    pub(crate) fn count_injected(&self) {
        self.faults_injected.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    pub(crate) fn wall(&self, time: Millis) -> Millis {
        Millis(time.0 / self.config.time_scale)
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault.read().clone()
    }

    pub(crate) fn set_fault(self: &Arc<Self>, fault: Fault) {
        let number = self.fault_number.fetch_add(1, Ordering::Relaxed) + 1;
        let was_alive = *self.alive.borrow();
        *self.fault.write() = fault.clone();
        if let Some(log) = &self.events {
            log.mute.store(fault.drop_events, Ordering::Relaxed);
            log.deaf.store(fault.no_replay, Ordering::Relaxed);
        }
        self.with(|scheduler, now| {
            scheduler.set_slow(fault.slow);
            if fault.clear_cache {
                scheduler.memory.clear(true);
            }
            if fault.die && was_alive {
                scheduler.die(now);
            }
        });
        if fault.die && was_alive {
            self.responses.clear();
        }
        if fault.die
            && was_alive
            && let Some(log) = &self.events
        {
            log.restart();
        }
        self.alive.send_replace(!fault.die);
        if let Some(wall_ms) = fault.die_for_ms.filter(|_| fault.die) {
            let shared = Arc::downgrade(self);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(wall_ms)).await;
                if let Some(shared) = shared.upgrade()
                    && shared.fault_number.load(Ordering::Relaxed) == number
                {
                    shared.set_fault(Fault::default());
                }
            });
        }
    }

    pub(crate) fn capture(&self, request: Captured) {
        let mut captured = self.captured.lock();
        if captured.len() >= CAPTURED {
            captured.pop_front();
        }
        captured.push_back(request);
    }

    pub(crate) fn captured(&self) -> Vec<Captured> {
        self.captured.lock().iter().cloned().collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.with(|scheduler, _| {
            Stats::of(
                scheduler,
                self.received.load(Ordering::Relaxed),
                self.faults_injected.load(Ordering::Relaxed),
            )
        })
    }
}

pub(crate) struct Ticket {
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) hold: Hold,
}

/// Keeps a request in the engine. Dropping it aborts an unfinished request, as when the client disconnects.
pub(crate) struct Hold {
    shared: Arc<Shared>,
    id: RequestId,
    /// Whether a fault, not the client, ends this request.
    pub(crate) injected: bool,
}

impl Hold {
    pub(crate) fn count_injected(&self) {
        self.shared.count_injected();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.state.lock().watchers.remove(&self.id);
        self.shared.with(|scheduler, now| {
            if self.injected {
                scheduler.withdraw(now, self.id);
            } else {
                scheduler.abort(now, self.id);
            }
        });
        self.shared.changed.notify_waiters();
    }
}

/// The ranks of an engine; one unless it is data-parallel.
pub(crate) type Ranks = Arc<[Arc<Shared>]>;

pub(crate) async fn drive(shared: Arc<Shared>) {
    loop {
        shared.with(|_, _| {});
        let next = {
            let mut state = shared.state.lock();
            state.armed = state.scheduler.next_event();
            state.armed
        };
        let Some(next) = next else {
            shared.wake.notified().await;
            continue;
        };
        let due = shared.started + Duration::from_secs_f64(shared.wall(next).0 / 1000.0);
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = shared.wake.notified() => {}
        }
    }
}

/// Returns seconds since 1970, for `created` and `ts` in the wire formats.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}
