//! The gate between the router and the engines, and the queue in front of it.
//!
//! There is one queue per model, since a model's workers being busy is no reason to hold another model's turns; the bound
//! on who waits is over all of them. A model that every worker serves shares the queue of requests that name none. What
//! bounds the number inside is how many requests the model's workers have, whoever's they are: a worker that serves two
//! models, or one under two names, has no room for twice as many. Queues that have room for one take turns.
//!
//! A request that was let in and has not been sent yet is invisible in any worker's predicted wait. So while the wait is
//! what bounds, no more of those are let in than there are workers whose wait is short enough.
//!
//! What is shed teaches nothing. A cost that was learned too high, in a moment when everything was slow, would have every
//! turn turned away and would stay as it is. So where nothing has been let in for [`PROBE_AFTER`] and a worker is idle,
//! one turn goes through whatever is predicted of it.
//!
//! Room appears when a request ends, when a prefill does, and by mere passing of time; the first lets the next one in at
//! once, the others are looked for every few milliseconds by [`keep_moving`], which sleeps while nobody waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use policy::admission::{FairQueue, Flow, Ticket};
use policy::units::Millis;
use tokio::sync::{Notify, oneshot};

use crate::app::App;
use fleet::Worker;
use fleet::clock;
use fleet::hold::Hold;
use protocol::error::ApiError;

/// Between two looks for room while somebody waits.
const STEP: Duration = Duration::from_millis(2);

/// Without a turn for so long, an idle worker is given one that is predicted to be late.
const PROBE_AFTER: Millis = Millis(500.0);
/// Of a request that names no model.
const NO_MODEL: &str = "";
/// Models of which it is remembered when they were last let in.
const MAX_MODELS: usize = 256;

/// The gate.
#[derive(Debug)]
pub struct Gate {
    pools: Mutex<Pools>,
    somebody_waits: Notify,
}

#[derive(Debug)]
struct Pools {
    of: HashMap<Arc<str>, Pool>,
    /// When a turn of a model was let in last.
    let_in_at: HashMap<Arc<str>, Millis>,
    waiting: usize,
    capacity: usize,
    /// How often somebody looked for room: where it begins to look.
    looks: usize,
}

/// What is inside and what waits, of one model.
#[derive(Debug)]
struct Pool {
    queue: FairQueue<Waiter>,
    /// Let in and not ended.
    inside: usize,
    /// Let in and not sent to a worker yet.
    unsent: usize,
}

#[derive(Debug)]
struct Waiter {
    tell: oneshot::Sender<Result<Permit, ApiError>>,
    shed: Option<Shed>,
}

/// When a turn is too late.
#[derive(Clone, Copy, Debug)]
pub struct Shed {
    /// When its first token is due.
    pub due: Millis,
    /// What its own prefill takes on the worker where it takes least.
    pub prefill: Millis,
}

/// A request that wants in.
#[derive(Debug)]
pub struct Ask {
    /// The model; empty if it names none.
    pub model: Arc<str>,
    /// With whom it shares its place.
    pub flow: Flow,
    /// Its share, and its priority.
    pub standing: (f64, i32),
    /// Its work, in whatever unit all requests use.
    pub cost: f64,
    /// When it is too late for it, if late turns are turned away.
    pub shed: Option<Shed>,
    /// How long it may wait.
    pub patience: Duration,
}

/// A place inside. Dropping it lets the next one in.
#[derive(Debug)]
pub struct Permit {
    app: Arc<App>,
    model: Arc<str>,
    sent: bool,
}

impl Permit {
    /// The request is on its way to a worker, where its work can be seen.
    pub fn sent(&mut self) {
        if !std::mem::replace(&mut self.sent, true) {
            self.app.admission.gate.change(&self.app, &self.model, |pool| {
                pool.unsent = pool.unsent.saturating_sub(1);
            });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let unsent = usize::from(!self.sent);
        self.app.admission.gate.change(&self.app, &self.model, |pool| {
            pool.inside = pool.inside.saturating_sub(1);
            pool.unsent = pool.unsent.saturating_sub(unsent);
        });
    }
}

/// A place in the queue. Dropping it leaves the queue.
struct Queued<'a> {
    gate: &'a Gate,
    model: Arc<str>,
    ticket: Ticket,
}

impl Drop for Queued<'_> {
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

/// What room there is for a model's requests.
struct Room {
    /// Requests inside; `None` is any number.
    inside: Option<usize>,
    /// Requests that its ready workers have, of any model.
    busy: usize,
    /// Requests on their way to a worker; `None` is any number.
    unsent: Option<usize>,
    /// The shortest predicted wait of a ready worker.
    wait: Millis,
    /// Whether a ready worker has nothing to do.
    idle: bool,
}

impl Room {
    fn of(app: &App, model: &str) -> Self {
        let settings = app.admission.settings.load();
        let now = app.clock.now();
        let (mut ready, mut quick, mut wait, mut idle, mut busy) = (0, 0, f64::INFINITY, false, 0);
        for worker in app.fleet.workers().iter() {
            if !worker.is_ready() || (!model.is_empty() && worker.serves(model) == Some(false)) {
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
            // Whoever comes in is told at once that nobody is there.
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

    /// Whether one more may come in, when `others` of other models are on their way to workers that may be the same.
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
    /// Whether a turn that is predicted to be late goes through to see whether that is true.
    fn is_due(&self, model: &str, room: &Room, now: Millis) -> bool {
        let long_ago = |at: &Millis| now.saturating_sub(*at).0 >= PROBE_AFTER.0;
        room.idle && self.let_in_at.get(model).is_none_or(long_ago)
    }

    /// A turn was let in.
    fn note(&mut self, model: &Arc<str>, now: Millis) {
        if self.let_in_at.len() >= MAX_MODELS && !self.let_in_at.contains_key(model) {
            self.let_in_at.clear();
        }
        self.let_in_at.insert(Arc::clone(model), now);
    }

    /// Requests of other models that are on their way to a worker.
    fn unsent_beside(&self, model: &str) -> usize {
        let others = self.of.iter().filter(|(name, _)| &***name != model);
        others.map(|(_, pool)| pool.unsent).sum()
    }

    /// The models whose requests wait, each time another one first: one that always finds room first would have it all.
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
    /// A gate with room for so many who wait.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            pools: Mutex::new(Pools {
                of: HashMap::new(),
                let_in_at: HashMap::new(),
                waiting: 0,
                capacity,
                looks: 0,
            }),
            somebody_waits: Notify::new(),
        }
    }

    /// Another bound on who waits.
    pub fn set_capacity(&self, capacity: usize) {
        self.pools.lock().capacity = capacity;
    }

    /// How many wait, and how many are inside.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let pools = self.pools.lock();
        (pools.waiting, pools.of.values().map(|pool| pool.inside).sum())
    }

    /// Lets a request in as soon as it is its turn. `None` if nothing bounds what is inside.
    ///
    /// # Errors
    /// If too many wait, it waits too long, or it would be late.
    pub async fn enter(app: &Arc<App>, ask: Ask) -> Result<Option<Permit>, ApiError> {
        let gate = &app.admission.gate;
        let (patience, sheds) = (ask.patience, ask.shed.is_some());
        let (queued, mut told) = match gate.join(app, ask)? {
            Joined::Free => return Ok(None),
            Joined::Inside(permit) => return Ok(Some(permit)),
            Joined::Waits(queued, told) => (queued, told),
        };
        gate.somebody_waits.notify_one();
        match tokio::time::timeout(patience, &mut told).await {
            Ok(Ok(answer)) => answer.map(Some),
            // Nobody drops the other end without having said something.
            Ok(Err(_)) => Err(ApiError::Overloaded),
            Err(_) => {
                drop(queued);
                // It may have been let in just now.
                match told.try_recv() {
                    Ok(answer) => answer.map(Some),
                    Err(_) if sheds && patience < app.admission.settings.load().queue_timeout => {
                        Err(ApiError::ObjectiveOutOfReach)
                    }
                    Err(_) => Err(ApiError::QueueTimeout(patience)),
                }
            }
        }
    }

    fn join<'a>(&'a self, app: &Arc<App>, ask: Ask) -> Result<Joined<'a>, ApiError> {
        let settings = app.admission.settings.load();
        let bounded = settings.max_concurrent_per_worker.is_some() || settings.max_wait.is_some();
        if !bounded && ask.shed.is_none() {
            return Ok(Joined::Free);
        }
        let now = app.clock.now();
        // What workers have is only known for as long as nobody else comes in.
        let mut pools = self.pools.lock();
        let room = Room::of(app, &ask.model);
        let others = pools.unsent_beside(&ask.model);
        if ask.shed.is_some_and(|shed| room.is_too_late(shed, now)) && !pools.is_due(&ask.model, &room, now) {
            return Err(ApiError::ObjectiveOutOfReach);
        }
        if !bounded {
            pools.note(&ask.model, now);
            return Ok(Joined::Free);
        }
        let (waiting, capacity) = (pools.waiting, pools.capacity);
        let pool = pools.of.entry(Arc::clone(&ask.model)).or_insert_with(|| Pool {
            queue: FairQueue::new(usize::MAX),
            inside: 0,
            unsent: 0,
        });
        if pool.queue.is_empty() && room.admits(pool, others) {
            let permit = pool.admit(app, &ask.model);
            pools.note(&ask.model, now);
            return Ok(Joined::Inside(permit));
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
        let queued = Queued {
            gate: self,
            model: ask.model,
            ticket,
        };
        Ok(Joined::Waits(queued, told))
    }

    /// Something changed inside: lets in whom there is room for now.
    fn change(&self, app: &Arc<App>, model: &str, change: impl FnOnce(&mut Pool)) {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.of.get_mut(model) {
            change(pool);
        }
        let mut refused = Vec::new();
        for model in pools.in_turn() {
            refused.extend(pools.let_in(app, &model));
            pools.forget_if_idle(&model);
        }
        pools.forget_if_idle(model);
        drop(pools);
        // A permit that nobody waited for any more is given back here, outside the lock.
        drop(refused);
    }

    /// Looks once for room in every queue; whether anybody still waits.
    fn move_on(&self, app: &Arc<App>) -> bool {
        self.change(app, NO_MODEL, |_| {});
        self.pools.lock().waiting > 0
    }
}

enum Joined<'a> {
    /// Nothing bounds it.
    Free,
    Inside(Permit),
    Waits(Queued<'a>, oneshot::Receiver<Result<Permit, ApiError>>),
}

impl Pool {
    fn admit(&mut self, app: &Arc<App>, model: &Arc<str>) -> Permit {
        self.inside += 1;
        self.unsent += 1;
        Permit {
            app: Arc::clone(app),
            model: Arc::clone(model),
            sent: false,
        }
    }
}

impl Pools {
    /// Lets in whom there is room for, and turns away who would be late. Returns what nobody took.
    fn let_in(&mut self, app: &Arc<App>, model: &Arc<str>) -> Vec<Result<Permit, ApiError>> {
        let mut refused = Vec::new();
        if self.of.get(model).is_none_or(|pool| pool.queue.is_empty()) {
            return refused;
        }
        let room = Room::of(app, model);
        let now = app.clock.now();
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
            // One that is turned away, or has left, costs its key nothing of its share.
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
                Ok(pool.admit(app, model))
            };
            refused.extend(waiter.tell.send(answer).err());
        }
        if let_in {
            self.note(model, now);
        }
        refused
    }
}

/// The model by whose queue a request for this one goes: every worker's is nobody's in particular.
#[must_use]
pub fn model<'a>(app: &App, model: &'a str) -> &'a str {
    let workers = app.fleet.workers();
    let present = |worker: &&Arc<Worker>| worker.hold() != Hold::Gone;
    let everybodys = workers
        .iter()
        .filter(present)
        .all(|worker| worker.serves(model) != Some(false));
    if everybodys { NO_MODEL } else { model }
}

/// Lets in whom there is room for by passing of time.
pub async fn keep_moving(app: Arc<App>) {
    loop {
        app.admission.gate.somebody_waits.notified().await;
        while app.admission.gate.move_on(&app) {
            tokio::time::sleep(STEP).await;
        }
    }
}

/// How long a request may wait here.
#[must_use]
pub fn patience(app: &App, shed: Option<Shed>) -> Duration {
    let settings = app.admission.settings.load();
    let own = shed.map(|shed| clock::duration(shed.due - app.clock.now()));
    own.map_or(settings.queue_timeout, |own| own.min(settings.queue_timeout))
}
