//! Trims workers' caches just in time, and learns the value of their contents from turns.

use std::sync::Arc;

use parking_lot::Mutex;
use policy::estimate::Finish;
use policy::ids::WorkerId;
use policy::tail::{Answered, Begun, Class};
use policy::units::{Millis, Tokens};

use fleet::Worker;
use fleet::hints::HintKind;
use learning::feedback::{self, CopyKeys, Observation, Turns};
use proxy::Proxy;
use state::Routing;

/// Largest number of copies trimmed in a row.
const MOST: usize = 64;

/// Records the start of a stream: its conversation is active, so there is nothing to trim.
pub(super) fn begun(routing: &Routing, begun: &feedback::Begun) {
    routing
        .feedback
        .tail
        .lock()
        .arrived(begun.arrived, begun.conversation, begun.worker, begun.left);
}

/// Learns from a completed turn, and adds its conversation to the silent ones.
pub(super) fn learn(routing: &Routing, worker: &Worker, lesson: &Observation, key: u64, turns: Turns) {
    let Some((_, name)) = &lesson.conversation else {
        return;
    };
    let capacity = routing
        .knowledge
        .update(worker.id, |residency| residency.capacity_of(worker.id));
    let mut tail = routing.feedback.tail.lock();
    tail.set_capacity(worker.id, capacity);
    tail.arrived(lesson.arrived, key, worker.id, lesson.left);
    tail.begun(
        lesson.ended,
        worker.id,
        &Begun {
            wait: lesson.wait,
            ttft: lesson.ttft,
            objective: lesson.objective,
            prompt: lesson.prompt,
            cached: lesson.cached,
            compared: lesson.compared,
            history: turns.history,
            cost: lesson.cost,
        },
    );
    routing.feedback.publish_next_turns(tail.next_turns());
    if lesson.last {
        return;
    }
    let added = lesson.prompt.saturating_sub(turns.history);
    let calls_tool = lesson.finish == Finish::ToolCalls;
    let turn = Answered {
        at: lesson.ended,
        worker: worker.id,
        conversation: key,
        class: Class::of(turns.number, added, calls_tool),
        length: lesson.prompt + lesson.response,
        objective: lesson.objective,
        what: Arc::new(CopyKeys {
            name: Arc::clone(name),
            tips: lesson.tips(),
            end: Mutex::default(),
        }),
    };
    tail.answered(turn, lesson.response);
}

/// Trims the ends of least value on a worker with too little room for the next prompts.
pub(super) fn make(proxy: &Proxy, worker: &Worker) {
    if !proxy.state.routing.makes_room_on(worker) {
        return;
    }
    let Some(wanted) = wanted(&proxy.state.routing, worker) else {
        return;
    };
    let now = proxy.state.routing.clock.now();
    let enough = room(&proxy.state.routing, worker) + wanted;
    for _ in 0..MOST {
        let need = enough.saturating_sub(room(&proxy.state.routing, worker));
        if need == Tokens::ZERO || !give_up(proxy, worker, now, need) {
            return;
        }
    }
}

/// Sets the price of room on a worker that takes hints in requests only: the value of the contents that it evicted to
/// store `stored` tokens.
pub(super) fn price(routing: &Routing, worker: &Worker, stored: Tokens) {
    if !routing.makes_room_on(worker) && wanted(routing, worker).is_some() {
        routing
            .feedback
            .tail
            .lock()
            .displaced(routing.clock.now(), worker.id, stored);
    }
}

fn room(routing: &Routing, worker: &Worker) -> Tokens {
    routing
        .knowledge
        .update(worker.id, |residency| residency.room_on(worker.id))
}

fn wanted(routing: &Routing, worker: &Worker) -> Option<Tokens> {
    let room = room(routing, worker);
    routing.feedback.tail.lock().wanted(worker.id, room)
}

/// Trims one end. Returns whether there was one.
fn give_up(proxy: &Proxy, worker: &Worker, now: Millis, need: Tokens) -> bool {
    let Some(trim) = proxy
        .state
        .routing
        .feedback
        .tail
        .lock()
        .next(now, worker.id, need)
    else {
        return false;
    };
    let keys = trim.what.keys();
    let marked = proxy.state.routing.knowledge.update(worker.id, |residency| {
        residency.trimmed(worker.id, keys.iter().copied(), trim.keep)
    });
    if marked.is_none() {
        forget(&proxy.state.routing, worker.id, trim.conversation);
    }
    // Nothing is marked while a turn of the conversation is running, or if the end lies within a piece.
    if let Some(marked) = marked.filter(|marked| marked.pieces > 0) {
        let keep = marked.keep;
        *trim.what.end.lock() = marked.end;
        worker
            .hints
            .push(Arc::clone(&trim.what.name), HintKind::Trim { keep });
        if let Some(bus) = &proxy.replicas {
            bus.trimmed(worker, keep, &keys);
        }
        proxy.state.routing.feedback.trimmed(worker, &trim, keep);
    }
    true
}

pub(super) fn forget(routing: &Routing, worker: WorkerId, conversation: u64) {
    routing.feedback.tail.lock().forget(worker, conversation);
}
