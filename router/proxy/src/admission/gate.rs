//! The gate between the router and the engines, and the queue in front of it.
//!
//! Each model has its own queue; the limit on waiting requests covers all of them. A model that every worker serves
//! shares the queue of requests that name none. Room is counted in the workers' requests of any model, because a worker
//! that serves two models, or one under two names, has no room for twice as many. Queues with room take turns.
//!
//! An admitted request that is not sent yet is invisible in predicted waits. So while the wait is the bound, no more of
//! those are admitted than there are workers with a short enough wait. Shed turns yield no observations, so an
//! overestimated cost would shed every turn and never be corrected. If nothing was admitted for [`PROBE_AFTER`] and a
//! worker is idle, one turn is admitted regardless of its prediction.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use policy::admission::{FairQueue, Flow, Ticket};
use policy::units::Millis;
use tokio::sync::{Notify, oneshot};

use super::Admission;
use fleet::Worker;
use fleet::clock;
use fleet::eligibility::Eligibility;
use fleet::overrides::AdminState;
use metrics::AdmissionGauges;
use protocol::error::ApiError;
use state::Routing;

/// Interval of polling while requests wait.
const STEP: Duration = Duration::from_millis(2);

/// Time without an admitted turn after which an idle worker gets a turn that is predicted to be late.
const PROBE_AFTER: Millis = Millis(500.0);
const NO_MODEL: &str = "";
const MAX_MODELS: usize = 256;

#[derive(Debug)]
pub struct Gate {
    pools: Mutex<Pools>,
    has_waiters: Notify,
}

#[derive(Debug)]
struct Pools {
    of: HashMap<Arc<str>, Pool>,
    last_admitted: HashMap<Arc<str>, Millis>,
    waiting: usize,
    capacity: usize,
    /// Number of passes over the queues, which rotates the first one.
    looks: usize,
}

#[derive(Debug)]
struct Pool {
    queue: FairQueue<Waiter>,
    /// Number of admitted requests that have not ended.
    inside: usize,
    /// Number of admitted requests that were not sent to a worker yet.
    unsent: usize,
}

#[derive(Debug)]
struct Waiter {
    tell: oneshot::Sender<Result<Permit, ApiError>>,
    shed: Option<Shed>,
}

/// Due time and prefill of a turn that is shed if it is predicted to be late.
#[derive(Clone, Copy, Debug)]
pub struct Shed {
    /// Latest time of the first token.
    pub due: Millis,
    /// Shortest predicted prefill over the workers.
    pub prefill: Millis,
}

/// A request to be admitted.
#[derive(Debug)]
pub struct Ask {
    /// Model; empty if the request names none.
    pub model: Arc<str>,
    /// Flow in the fair queue, shared by requests of the same key.
    pub flow: Flow,
    /// Weight and priority of the key.
    pub standing: (f64, i32),
    /// Work, in the unit that all requests use.
    pub cost: f64,
    /// Times by which a late turn is shed; `None` if late turns are not shed.
    pub shed: Option<Shed>,
    /// Longest wait in the queue.
    pub patience: Duration,
}

/// An admitted request. Dropping it admits the next one.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    model: Arc<str>,
    sent: bool,
}

impl Permit {
    /// Records that the request was sent to a worker, where its work is visible.
    pub fn sent(&mut self) {
        if !std::mem::replace(&mut self.sent, true) {
            self.admission.gate.change(&self.admission, &self.model, |pool| {
                pool.unsent = pool.unsent.saturating_sub(1);
            });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let unsent = usize::from(!self.sent);
        self.admission.gate.change(&self.admission, &self.model, |pool| {
            pool.inside = pool.inside.saturating_sub(1);
            pool.unsent = pool.unsent.saturating_sub(unsent);
        });
    }
}

/// A waiting request. Dropping it removes the request from the queue.
struct QueuedRequest<'a> {
    gate: &'a Gate,
    model: Arc<str>,
    ticket: Ticket,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut pools = self.gate.pools.lock();
        let Some(pool) = pools.of.get_mut(&self.model) else {
            return;
        };
        if pool.queue.remove(self.ticket).is_some() {
            pools.waiting -= 1;
            pools.forget_if_idle(&self.model);
        }
    }
}

struct Room {
    /// Largest number of admitted requests; `None` for no limit.
    inside: Option<usize>,
    /// Requests of any model on its ready workers.
    busy: usize,
    /// Largest number of unsent requests; `None` for no limit.
    unsent: Option<usize>,
    /// Shortest predicted wait of a ready worker.
    wait: Millis,
    idle: bool,
}

impl Room {
    fn of(admission: &Admission, model: &str) -> Self {
        let settings = admission.settings.load();
        let now = admission.state.routing.clock.now();
        let (mut ready, mut quick, mut wait, mut idle, mut busy) = (0, 0, f64::INFINITY, false, 0);
        let workers = admission.state.routing.fleet.workers();
        let eligible = eligibility(&admission.state.routing, &workers, model);
        for worker in workers.iter() {
            if !worker.is_ready() || !eligible.admits(worker) {
                continue;
            }
            let (its, in_flight) = worker.with_load(|load| (load.pending.wait(now).0, load.in_flight));
            ready += 1;
            idle |= in_flight == 0;
            busy += in_flight as usize;
            quick += usize::from(settings.max_wait.is_none_or(|most| its <= most.0));
            wait = wait.min(its);
        }
        if ready == 0 {
            // Without ready workers the request is admitted and fails at once.
            return Self {
                inside: None,
                busy,
                unsent: None,
                wait: Millis::ZERO,
                idle: true,
            };
        }
        Self {
            inside: settings
                .max_concurrent_per_worker
                .map(|each| (each.get() as usize).saturating_mul(ready)),
            busy,
            unsent: settings.max_wait.map(|_| quick),
            wait: Millis(wait),
            idle,
        }
    }

    /// Returns whether one more request may be admitted. `others`: unsent requests of other models, which may go to the
    /// same workers.
    fn admits(&self, pool: &Pool, others: usize) -> bool {
        self.inside
            .is_none_or(|most| pool.inside < most && self.busy + pool.unsent + others < most)
            && self.unsent.is_none_or(|most| pool.unsent < most)
    }

    fn is_too_late(&self, shed: Shed, now: Millis) -> bool {
        now + self.wait + shed.prefill > shed.due
    }
}

impl Pools {
    /// Returns whether a turn that is predicted to be late is admitted to verify the prediction.
    fn is_due(&self, model: &str, room: &Room, now: Millis) -> bool {
        let long_ago = |at: &Millis| now.saturating_sub(*at).0 >= PROBE_AFTER.0;
        room.idle && self.last_admitted.get(model).is_none_or(long_ago)
    }

    fn note(&mut self, model: &Arc<str>, now: Millis) {
        if self.last_admitted.len() >= MAX_MODELS && !self.last_admitted.contains_key(model) {
            self.last_admitted.clear();
        }
        self.last_admitted.insert(Arc::clone(model), now);
    }

    fn unsent_beside(&self, model: &str) -> usize {
        let others = self.of.iter().filter(|(name, _)| &***name != model);
        others.map(|(_, pool)| pool.unsent).sum()
    }

    /// Returns the models with waiting requests, starting with another one each time, so that none takes all the room.
    fn in_turn(&mut self) -> Vec<Arc<str>> {
        let waiting = self.of.iter().filter(|(_, pool)| !pool.queue.is_empty());
        let mut models: Vec<Arc<str>> = waiting.map(|(model, _)| Arc::clone(model)).collect();
        models.sort_unstable();
        self.looks = self.looks.wrapping_add(1);
        let first = self.looks.checked_rem(models.len()).unwrap_or(0);
        models.rotate_left(first);
        models
    }

    fn forget_if_idle(&mut self, model: &str) {
        if self
            .of
            .get(model)
            .is_some_and(|pool| pool.inside == 0 && pool.queue.is_empty())
        {
            self.of.remove(model);
        }
    }
}

impl Gate {
    /// Creates a gate with room for `capacity` waiting requests.
    pub fn new(capacity: usize) -> Self {
        Self {
            pools: Mutex::new(Pools {
                of: HashMap::new(),
                last_admitted: HashMap::new(),
                waiting: 0,
                capacity,
                looks: 0,
            }),
            has_waiters: Notify::new(),
        }
    }

    /// Sets the limit on waiting requests.
    pub fn set_capacity(&self, capacity: usize) {
        self.pools.lock().capacity = capacity;
    }

    /// Returns the numbers of waiting and of admitted requests.
    pub fn counts(&self) -> AdmissionGauges {
        let pools = self.pools.lock();
        AdmissionGauges {
            waiting: pools.waiting,
            admitted: pools.of.values().map(|pool| pool.inside).sum(),
        }
    }

    /// Waits until a request is admitted. Returns `None` if nothing limits admission. Fails if too many requests wait,
    /// the wait exceeds its limit, or the turn would be late.
    pub async fn enter(admission: &Arc<Admission>, ask: Ask) -> Result<Option<Permit>, ApiError> {
        let gate = &admission.gate;
        let (patience, sheds) = (ask.patience, ask.shed.is_some());
        let (queued, mut told) = match gate.join(admission, ask)? {
            AdmissionResult::Free => return Ok(None),
            AdmissionResult::Inside(permit) => return Ok(Some(permit)),
            AdmissionResult::Waits(queued, told) => (queued, told),
        };
        gate.has_waiters.notify_one();
        match tokio::time::timeout(patience, &mut told).await {
            Ok(Ok(answer)) => answer.map(Some),
            // The sender is never dropped without a result.
            Ok(Err(_)) => Err(ApiError::Overloaded),
            Err(_) => {
                drop(queued);
                // The request may have been admitted just now.
                match told.try_recv() {
                    Ok(answer) => answer.map(Some),
                    Err(_) if sheds && patience < admission.settings.load().queue_timeout => {
                        Err(ApiError::ObjectiveOutOfReach)
                    }
                    Err(_) => Err(ApiError::QueueTimeout(patience)),
                }
            }
        }
    }

    fn join<'a>(&'a self, admission: &Arc<Admission>, ask: Ask) -> Result<AdmissionResult<'a>, ApiError> {
        let settings = admission.settings.load();
        let bounded = settings.max_concurrent_per_worker.is_some() || settings.max_wait.is_some();
        if !bounded && ask.shed.is_none() {
            return Ok(AdmissionResult::Free);
        }
        let now = admission.state.routing.clock.now();
        // The load of the workers is valid only while no other request can be admitted.
        let mut pools = self.pools.lock();
        let room = Room::of(admission, &ask.model);
        let others = pools.unsent_beside(&ask.model);
        if ask.shed.is_some_and(|shed| room.is_too_late(shed, now)) && !pools.is_due(&ask.model, &room, now) {
            return Err(ApiError::ObjectiveOutOfReach);
        }
        if !bounded {
            pools.note(&ask.model, now);
            return Ok(AdmissionResult::Free);
        }
        let (waiting, capacity) = (pools.waiting, pools.capacity);
        let pool = pools.of.entry(Arc::clone(&ask.model)).or_insert_with(|| Pool {
            queue: FairQueue::new(usize::MAX),
            inside: 0,
            unsent: 0,
        });
        if pool.queue.is_empty() && room.admits(pool, others) {
            let permit = pool.admit(admission, &ask.model);
            pools.note(&ask.model, now);
            return Ok(AdmissionResult::Inside(permit));
        }
        if waiting >= capacity {
            return Err(ApiError::QueueFull);
        }
        let (tell, told) = oneshot::channel();
        let (weight, priority) = ask.standing;
        let waiter = Waiter { tell, shed: ask.shed };
        let pushed = pool.queue.push(ask.flow, priority, weight, ask.cost, waiter);
        let ticket = pushed.map_err(|_| ApiError::QueueFull)?;
        pools.waiting += 1;
        let queued = QueuedRequest {
            gate: self,
            model: ask.model,
            ticket,
        };
        Ok(AdmissionResult::Waits(queued, told))
    }

    /// Applies a change to a model's pool, then admits requests for which there is room.
    fn change(&self, admission: &Arc<Admission>, model: &str, change: impl FnOnce(&mut Pool)) {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.of.get_mut(model) {
            change(pool);
        }
        let mut refused = Vec::new();
        for model in pools.in_turn() {
            refused.extend(pools.let_in(admission, &model));
            pools.forget_if_idle(&model);
        }
        pools.forget_if_idle(model);
        drop(pools);
        // A permit whose request was dropped is released outside the lock.
        drop(refused);
    }

    /// Admits the requests for which there is room, from every queue. Returns whether requests still wait.
    fn move_on(&self, admission: &Arc<Admission>) -> bool {
        self.change(admission, NO_MODEL, |_| {});
        self.pools.lock().waiting > 0
    }
}

enum AdmissionResult<'a> {
    /// Nothing limits admission.
    Free,
    Inside(Permit),
    Waits(QueuedRequest<'a>, oneshot::Receiver<Result<Permit, ApiError>>),
}

impl Pool {
    fn admit(&mut self, admission: &Arc<Admission>, model: &Arc<str>) -> Permit {
        self.inside += 1;
        self.unsent += 1;
        Permit {
            admission: Arc::clone(admission),
            model: Arc::clone(model),
            sent: false,
        }
    }
}

impl Pools {
    /// Admits requests for which there is room, and sheds those that would be late. Returns undeliverable results.
    fn let_in(&mut self, admission: &Arc<Admission>, model: &Arc<str>) -> Vec<Result<Permit, ApiError>> {
        let mut refused = Vec::new();
        if self.of.get(model).is_none_or(|pool| pool.queue.is_empty()) {
            return refused;
        }
        let room = Room::of(admission, model);
        let now = admission.state.routing.clock.now();
        let mut is_due = self.is_due(model, &room, now);
        let others = self.unsent_beside(model);
        let Some(pool) = self.of.get_mut(model) else {
            return refused;
        };
        let mut let_in = false;
        while let Some((ticket, head)) = pool.queue.peek() {
            let late = !is_due && head.shed.is_some_and(|shed| room.is_too_late(shed, now));
            if !late && !room.admits(pool, others) {
                break;
            }
            // A request that was shed or dropped costs its key no share.
            let gone = late || head.tell.is_closed();
            let waiter = if gone {
                pool.queue.remove(ticket)
            } else {
                pool.queue.pop()
            };
            self.waiting -= 1;
            let Some(waiter) = waiter.filter(|waiter| !waiter.tell.is_closed()) else {
                continue;
            };
            let answer = if late {
                Err(ApiError::ObjectiveOutOfReach)
            } else {
                (is_due, let_in) = (false, true);
                Ok(pool.admit(admission, model))
            };
            refused.extend(waiter.tell.send(answer).err());
        }
        if let_in {
            self.note(model, now);
        }
        refused
    }
}

/// Returns the name of the queue for requests of a model: the empty name, as for requests that name no model, if every
/// worker serves it.
pub fn model<'a>(routing: &Routing, model: &'a str) -> &'a str {
    let workers = routing.fleet.workers();
    let present = |worker: &&Arc<Worker>| worker.admin_state() != AdminState::Gone;
    let eligible = eligibility(routing, &workers, model);
    let everybodys = workers
        .iter()
        .filter(present)
        .all(|worker| eligible.admits(worker));
    if everybodys { NO_MODEL } else { model }
}

fn eligibility<'a>(routing: &Routing, workers: &[Arc<Worker>], model: &'a str) -> Eligibility<'a> {
    Eligibility::of(workers.iter(), model, routing.config.routing.unlisted_models)
}

/// Admits requests for which room appears as time passes.
pub async fn keep_moving(admission: Arc<Admission>) {
    loop {
        admission.gate.has_waiters.notified().await;
        while admission.gate.move_on(&admission) {
            tokio::time::sleep(STEP).await;
        }
    }
}

/// Returns how long a request may wait: the configured timeout, or the time until its first token is due if that is
/// shorter.
pub fn patience(admission: &Admission, shed: Option<Shed>) -> Duration {
    let settings = admission.settings.load();
    let own = shed.map(|shed| clock::duration(shed.due - admission.state.routing.clock.now()));
    own.map_or(settings.queue_timeout, |own| own.min(settings.queue_timeout))
}
