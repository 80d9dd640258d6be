//! Learned costs and habits, as they outlive a process (docs/learning.md, "Over a restart").
//!
//! A [snapshot](crate::snapshot) has them as one JSON document. Each part is checked, and one that no observations can
//! have led to is left out and logged. The time between two processes counts as time without a response.

use std::collections::BTreeMap;

use crate::Routing;
use fleet::Worker;
use learning::feedback::{KeptCost, KeptPrompt};
use operator::unix_ms;
use policy::cost::PrefillCost;
use policy::estimate::KeptHabits;
use policy::fleet_record::CapacitySource;
use policy::tail::KeptTail;
use policy::units::{Millis, Tokens};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{info, warn};

use crate::State;

/// Largest number of workers whose costs are restored.
const MOST: usize = 10_000;

#[derive(Serialize)]
struct Learned {
    workers: BTreeMap<String, KeptLearning>,
    prompt: KeptPrompt,
    habits: KeptHabits,
    tail: KeptTail,
}

/// Learned cost and capacity of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptLearning {
    url: String,
    /// Configured cost, if any. The learned cost is dropped if it has changed.
    configured: Option<PrefillCost>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost: Option<KeptCost>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<Tokens>,
}

impl KeptLearning {
    fn of(routing: &Routing, worker: &Worker) -> Option<Self> {
        let now = routing.clock.now();
        let cost = routing.feedback.costs.lock().kept(now, worker.id);
        let is_learned = routing.capacity_source(worker) == CapacitySource::Learned;
        let capacity = is_learned.then(|| routing.knowledge.capacity(worker.id));
        (cost.is_some() || capacity.is_some()).then(|| Self {
            url: worker.spec.url.to_string(),
            configured: worker.spec.cost_is_known.then_some(worker.spec.cost),
            cost,
            capacity,
        })
    }

    /// Restores the learned values of a worker, unless its address has changed.
    pub(crate) fn apply(&self, state: &State, worker: &Worker, taken_ms: u64) {
        if self.url != worker.spec.url.to_string() {
            info!(
                worker = worker.name(),
                url = self.url,
                "learned costs dropped: the worker has another address"
            );
            return;
        }
        if let Some(capacity) = self.capacity {
            state.routing.knowledge.restore_capacity(worker.id, capacity);
        }
        let Some(cost) = &self.cost else { return };
        if self.configured != worker.spec.cost_is_known.then_some(worker.spec.cost) {
            info!(
                worker = worker.name(),
                "learned costs dropped: the configured cost has changed"
            );
            return;
        }
        let (now, age) = (state.routing.clock.now(), age(taken_ms));
        if !state
            .routing
            .feedback
            .costs
            .lock()
            .restore(now, age, worker.id, cost)
        {
            info!(
                worker = worker.name(),
                "learned costs dropped: invalid, or older than what is known here"
            );
        }
    }
}

fn age(taken_ms: u64) -> Millis {
    Millis(unix_ms().saturating_sub(taken_ms) as f64)
}

/// Encodes costs, capacities, habits and the terms of the value of conversations' ends as JSON.
pub(crate) fn taken(state: &State) -> Vec<u8> {
    let mut workers = state.operations.pending.lock().learned.clone();
    for worker in state.routing.fleet.present() {
        if let Some(learned) = KeptLearning::of(&state.routing, &worker) {
            workers.insert(worker.name().to_owned(), learned);
        }
    }
    let learned = Learned {
        workers,
        prompt: state.routing.feedback.costs.lock().kept_prompt(),
        habits: state.routing.feedback.conversations.lock().habits.kept(),
        tail: state.routing.feedback.tail.lock().kept(),
    };
    serde_json::to_vec(&learned).unwrap_or_default()
}

/// Restores a document. Returns the number of restored parts: workers, classes of habits, and the terms of ends.
pub(crate) fn restore(state: &State, document: &[u8], taken_ms: u64) -> usize {
    let Ok(Value::Object(mut members)) = serde_json::from_slice(document) else {
        warn!("costs and habits of the earlier process are not restored: they are no document");
        return 0;
    };
    let mut restored = 0;
    let mut member = |name: &str| members.remove(name).unwrap_or_default();
    if let Some(prompt) = read("prompt", member("prompt")) {
        state.routing.feedback.costs.lock().restore_prompt(prompt);
    }
    if let Some(habits) = read::<KeptHabits>("habits", member("habits")) {
        restored += state
            .routing
            .feedback
            .conversations
            .lock()
            .habits
            .restore(&habits);
    }
    if let Some(tail) = read::<KeptTail>("tail", member("tail")) {
        restored += usize::from(state.routing.feedback.tail.lock().restore_kept(&tail));
    }
    let workers = read::<BTreeMap<String, Value>>("workers", member("workers")).unwrap_or_default();
    for (name, learned) in workers.into_iter().take(MOST) {
        let Some(learned) = read::<KeptLearning>(&name, learned) else {
            continue;
        };
        restored += 1;
        match state.routing.fleet.find(&name) {
            Some(worker) => learned.apply(state, &worker, taken_ms),
            None => {
                let mut pending = state.operations.pending.lock();
                pending.taken_ms = taken_ms;
                pending.learned.insert(name, learned);
            }
        }
    }
    state.routing.publish_costs();
    restored
}

fn read<T: serde::de::DeserializeOwned>(name: &str, member: Value) -> Option<T> {
    let read = serde_json::from_value(member);
    read.inspect_err(|error| warn!(of = name, %error, "what was learned is not restored: it cannot be read"))
        .ok()
}
