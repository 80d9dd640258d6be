//! A turn's answer as it is seen to pass, and who is told: whoever carries it, this router or a gateway.
//!
//! What a stream says after its first token is asked for when it is over, or breaks off. So its events are put aside and read
//! ten at a time: what reading takes of the processor's caches, its code above all, would be fetched anew for each token
//! otherwise, since whatever runs between two tokens of a stream has filled them with its own.

use std::sync::Arc;

use super::flight::{End, Flight, Outcome};
use super::traced::answer_facts;
use fleet::Worker;
use protocol::routes::Family;
use protocol::watch::Watch;
use telemetry::logs::request::RequestIdentity;
use telemetry::traces::AttemptSpan;
use telemetry::traces::Stage;

/// Most bytes of a stream that are put aside: some ten tokens' events.
const ASIDE_BYTES: usize = 4096;

/// Looks at an answer that passes. Dropping it before the end counts as the client having left.
#[derive(Debug)]
pub struct Observer {
    watch: Watch,
    /// What passed and was not read yet.
    aside: Vec<u8>,
    /// What passes can be read later.
    is_flowing: bool,
    worker: Arc<Worker>,
    flight: Option<Box<Flight>>,
    /// The outcome if all of it passes.
    outcome: Outcome,
    span: AttemptSpan,
    /// As the log names the request.
    whose: Option<RequestIdentity>,
}

impl Observer {
    /// Looks at the answer of this attempt.
    #[must_use]
    pub fn new(watch: Watch, (flight, span): (Box<Flight>, AttemptSpan), outcome: Outcome) -> Self {
        Self {
            watch,
            aside: Vec::new(),
            is_flowing: false,
            worker: Arc::clone(flight.worker()),
            flight: Some(flight),
            outcome,
            span,
            whose: RequestIdentity::current(),
        }
    }

    /// The attempt, as long as it goes on.
    #[must_use]
    pub fn flight(&self) -> Option<&Flight> {
        self.flight.as_deref()
    }

    /// Whose clients read the answer.
    #[must_use]
    pub fn family(&self) -> Family {
        self.watch.family()
    }

    /// Where the event stream stands, as far as it was read; `None` if it is none.
    #[must_use]
    pub fn standing(&self) -> Option<sse::StreamPosition<'_>> {
        self.watch.standing()
    }

    /// Some of it passes.
    pub fn passed(&mut self, data: &[u8]) {
        if self.flight.is_none() {
            return;
        }
        self.worker.saw_bytes(data.len());
        if self.is_flowing && self.aside.len() + data.len() <= ASIDE_BYTES {
            if self.aside.capacity() == 0 {
                self.aside.reserve_exact(ASIDE_BYTES);
            }
            self.aside.extend_from_slice(data);
            return;
        }
        self.catch_up();
        self.read(data);
    }

    /// Reads what was put aside.
    pub fn catch_up(&mut self) {
        if self.aside.is_empty() {
            return;
        }
        let mut aside = std::mem::take(&mut self.aside);
        self.read(&aside);
        aside.clear();
        self.aside = aside;
    }

    fn read(&mut self, data: &[u8]) {
        let Some(flight) = &mut self.flight else { return };
        self.watch.push(data, |piece| flight.reply(piece));
        flight.passed(self.watch.passed);
        if let Some(key) = self.watch.answer.take() {
            flight.is_kept(key);
        }
        if self.watch.first_token && self.outcome == Outcome::Ok {
            flight.first_token(self.watch.is_stream());
            self.span.first_token();
        }
        self.is_flowing = self.watch.first_token && self.watch.is_stream();
    }

    /// All of it is here and is about to go out. What its client may act on as soon as it has it is done now, and not when it
    /// has [ended](Self::ended): another request gets in, and an answer that is kept can be named.
    pub fn is_whole(&mut self) {
        self.catch_up();
        let Some(flight) = &mut self.flight else { return };
        flight.free_place();
        if self.watch.keeps() {
            self.watch.end(|piece| flight.reply(piece));
            if let Some(key) = self.watch.answer.take() {
                flight.is_kept(key);
            }
        }
    }

    /// All of it has passed.
    pub fn ended(&mut self) {
        self.catch_up();
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        self.watch.end(|piece| flight.reply(piece));
        flight.passed(self.watch.passed);
        if let Some(key) = self.watch.answer.take() {
            flight.is_kept(key);
        }
        let complete = self.watch.complete || self.watch.finished || self.outcome != Outcome::Ok;
        let outcome = if complete { self.outcome } else { Outcome::Broken };
        self.settle(flight, outcome, complete);
    }

    /// All of it has passed, and nothing of it was seen but its head.
    pub fn ended_unseen(&mut self) {
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        if self.outcome == Outcome::Ok {
            flight.first_token(false);
        }
        self.settle(flight, self.outcome, false);
    }

    /// It broke off. `say` is told of the attempt first.
    pub fn broke(&mut self, outcome: Outcome, say: impl FnOnce(&Flight)) {
        self.catch_up();
        let Some(flight) = self.flight.take() else { return };
        self.within(|| say(&flight));
        self.settle(flight, outcome, false);
    }

    /// Whether a stream has ended as HTTP ends one, but not as the API does: an engine whose generator failed. A client that
    /// does not wait for `[DONE]` would take what came for the whole reply. Nobody knows before it was [read](Self::catch_up)
    /// to its end.
    #[must_use]
    pub fn stops_short(&self) -> bool {
        let is_complete = self.aside.is_empty() && (self.watch.complete || self.watch.finished);
        self.outcome == Outcome::Ok
            && self.watch.is_stream()
            && !is_complete
            && self
                .flight
                .as_ref()
                .is_some_and(|flight| flight.is_ended_by_done())
    }

    /// What happened is applied, and written down.
    fn settle(&self, flight: Box<Flight>, outcome: Outcome, complete: bool) {
        let seen = flight.believed(self.watch.seen());
        self.span.end(outcome.as_str(), Some(answer_facts(seen)));
        let _learning = self.span.trace().begin(Stage::Learn);
        self.within(|| {
            flight.end(End {
                outcome,
                seen: Some(seen),
                keeps_reply: complete,
            });
        });
    }

    /// What is logged meanwhile is the request's.
    fn within(&self, work: impl FnOnce()) {
        match &self.whose {
            Some(whose) => whose.in_scope(work),
            None => work(),
        }
    }
}

impl Drop for Observer {
    /// The client left: what is still in flight is given back, and the log says of which request it was.
    fn drop(&mut self) {
        self.catch_up();
        let Some(flight) = self.flight.take() else { return };
        self.span.end(Outcome::Aborted.as_str(), None);
        let _learning = self.span.trace().begin(Stage::Learn);
        self.within(|| drop(flight));
    }
}
