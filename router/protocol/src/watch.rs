//! Observes a response as it passes: first token, pieces of the reply, usage, finish reason, the engine's own times.
//!
//! Events and whole responses are read by their [API](crate::api). A stream is read line by line without delaying it; a
//! whole response is copied up to a bound and read at its end.

use policy::estimate::Finish;
use policy::slo::EngineTimes;
use policy::units::{Millis, Tokens};

use super::api::{Endpoint, Family};
use super::first_event::FirstEvent;
use super::reply::Piece;
use super::verdict::{Verdict, begins_an_error, error_in};
use tailroute_http::byte_reservation::ByteReservation;

mod fact;
mod stencil;

pub(crate) use fact::StreamFact;
use stencil::Stencil;

/// Maximum size in bytes of a whole response that is read for its usage; a longer one passes unread.
const MAX_WHOLE_BYTES: usize = 8 << 20;
/// Number of bytes buffered per response that do not count towards the total of all responses.
pub const UNCOUNTED_BYTES: usize = 64 << 10;
/// Maximum token count that is accepted from a worker. Far beyond any model, and sums cannot overflow.
pub(crate) const MAX_TOKENS: u64 = 1 << 32;

/// Token counts reported by the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub prompt: u64,
    /// Number of tokens of the reply.
    pub completion: u64,
    /// Number of prompt tokens found in the worker's cache, if reported.
    pub cached: Option<u64>,
}

impl Usage {
    /// Bounds the counts that a worker reports.
    pub(crate) fn reported(prompt: u64, completion: u64, cached: Option<u64>) -> Self {
        Self {
            prompt: prompt.min(MAX_TOKENS),
            completion: completion.min(MAX_TOKENS),
            cached: cached.map(|cached| cached.min(MAX_TOKENS)),
        }
    }
}

/// Amounts of a response that have passed, to estimate tokens when a worker reports no usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    unread: u64,
    /// Number of events with tokens; a whole response counts as one.
    pub events: u64,
    /// Number of bytes of generated content, over all choices.
    pub(crate) said: u64,
    all: u64,
}

impl Passed {
    /// Estimates the tokens of the reply at `per_byte`, at least one per event. An unread response counts as text.
    pub fn tokens(self, per_byte: f64) -> Tokens {
        let bytes = if self.said + self.events > 0 {
            self.said
        } else {
            self.unread
        };
        Tokens(((bytes as f64 * per_byte).ceil() as u64).max(self.events))
    }

    /// Returns the number of bytes that have passed.
    pub fn bytes(self) -> u64 {
        self.all
    }

    pub(crate) fn say(&mut self, piece: &Piece<'_>) {
        self.said += match piece {
            Piece::Reasoning(text) | Piece::Text(text) => text.len(),
            Piece::Call { name, arguments, .. } => name.len() + arguments.len(),
            Piece::Unrepeated => 0,
        } as u64;
    }
}

/// Facts that a response reports about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResponseReport {
    /// Token counts reported by the worker.
    pub usage: Option<Usage>,
    /// Reason for which the response ended, as reported.
    pub finish: Finish,
    /// Prefill time by the engine's clock, if it reports times per request.
    pub prefill: Option<Millis>,
    /// Queueing time by the engine's clock, if reported.
    pub queue: Option<Millis>,
    /// Whether the response has several choices; the counts cover all of them.
    pub several: bool,
}

impl ResponseReport {
    /// Returns the engine's own times, if it reported all of them.
    pub fn engine(&self) -> Option<EngineTimes> {
        let (queue, prefill) = self.queue.zip(self.prefill)?;
        Some(EngineTimes { queue, prefill })
    }
}

/// Progress of a response after a piece of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The piece completes no event: it is part of one, a comment, a ping, or white space before a whole response.
    Nothing,
    /// The piece completes an event; no token has passed so far.
    Event,
    /// A token, or a byte of a response without tokens, has passed.
    Token,
}

/// Observer of one response.
#[derive(Debug)]
pub struct Watch {
    form: ResponseForm,
    /// Reader of the first event, for a response that is no parsed event stream.
    first_event: FirstEvent,
    /// Reservation within the memory for buffers of all responses, if limited.
    room: Option<ByteReservation>,
    pub(crate) stencil: Stencil,
    endpoint: Endpoint,
    /// Key of the id of a response of `/v1/responses`, once it was read.
    pub response_key: Option<u64>,
    /// Text of the reply so far, for events that repeat it.
    pub(crate) text: String,
    /// Whether a token has passed.
    pub first_token: bool,
    /// Number of stream events up to the one with the first token, without pings.
    early_events: u64,
    /// Amounts of the response that have passed.
    pub passed: Passed,
    /// Whether the response is complete: a parsed stream declared so, any other response ended cleanly.
    pub complete: bool,
    /// Whether a choice gave a finish reason.
    pub finished: bool,
    /// Size of the beginning of a whole body that holds no error.
    judged_bytes: usize,
    /// Verdict on the first error in the body.
    pub error: Option<Verdict>,
    /// Token counts reported by the worker.
    pub usage: Option<Usage>,
    pub(crate) finish: Finish,
    pub(crate) several: bool,
    pub(crate) prefill: Option<Millis>,
    pub(crate) queue: Option<Millis>,
}

#[derive(Debug)]
enum ResponseForm {
    Stream(sse::Lines),
    Whole(Vec<u8>),
    Unread,
}

impl Watch {
    /// Creates a watch for a response of this endpoint and content type.
    pub fn new(endpoint: Endpoint, content_type: Option<&str>, encoded: bool) -> Self {
        let form = match content_type {
            _ if encoded || !endpoint.generates() => ResponseForm::Unread,
            Some(kind) if kind.starts_with("text/event-stream") => {
                ResponseForm::Stream(sse::Lines::default())
            }
            Some(kind) if kind.starts_with("application/json") => ResponseForm::Whole(Vec::new()),
            _ => ResponseForm::Unread,
        };
        Self {
            form,
            first_event: FirstEvent::new(content_type, encoded),
            room: None,
            stencil: Stencil::default(),
            endpoint,
            response_key: None,
            text: String::new(),
            first_token: false,
            early_events: 0,
            passed: Passed::default(),
            complete: false,
            finished: false,
            judged_bytes: 0,
            error: None,
            usage: None,
            finish: Finish::Other,
            several: false,
            prefill: None,
            queue: None,
        }
    }

    /// Limits the buffer to this room. Beyond it, a whole response passes unread; of a stream, only the current line does.
    #[must_use]
    pub fn within(mut self, room: ByteReservation) -> Self {
        self.room = Some(room);
        self
    }

    /// Records that the first `bytes` of a whole body hold no error.
    #[must_use]
    pub fn without_error_in(mut self, bytes: usize) -> Self {
        self.judged_bytes = bytes;
        self
    }

    /// Adjusts the reservation to the buffer. Returns whether the bound allows it.
    fn reserve(&mut self) -> bool {
        let held = match &self.form {
            ResponseForm::Stream(lines) => lines.held(),
            ResponseForm::Whole(copy) => copy.len(),
            ResponseForm::Unread => 0,
        };
        let counted = (held + self.text.len()).saturating_sub(UNCOUNTED_BYTES);
        self.room.as_mut().is_none_or(|room| room.resize(counted))
    }

    /// Returns the facts seen so far.
    pub fn seen(&self) -> ResponseReport {
        ResponseReport {
            usage: self.usage,
            finish: self.finish,
            prefill: self.prefill,
            queue: self.queue,
            several: self.several,
        }
    }

    /// Returns whether the response is a parsed event stream.
    pub fn is_stream(&self) -> bool {
        matches!(self.form, ResponseForm::Stream(_))
    }

    /// Returns whether the response is a whole body that begins like an error.
    pub fn is_in_doubt(&self) -> bool {
        matches!(&self.form, ResponseForm::Whole(copy) if begins_an_error(copy))
    }

    /// Returns the API family of the response.
    pub fn family(&self) -> Family {
        self.endpoint.facts().family
    }

    /// Returns the position in the event stream; `None` for other responses and unread ones.
    pub fn position(&self) -> Option<sse::StreamPosition<'_>> {
        match &self.form {
            ResponseForm::Stream(lines) => Some(lines.position()),
            _ => None,
        }
    }

    /// Reads the next chunk and passes the pieces of the first choice to `reply`.
    pub fn push(&mut self, chunk: &[u8], mut reply: impl FnMut(Piece<'_>)) -> Step {
        let early_events = self.early_events;
        self.passed.all += chunk.len() as u64;
        // Some servers send white space while a whole response is computed.
        let is_blank = matches!(self.form, ResponseForm::Whole(_)) && chunk.trim_ascii_start().is_empty();
        match &mut self.form {
            ResponseForm::Stream(lines) => {
                let (mut lines, mut said) = (std::mem::take(lines), Passed::default());
                let mut counted = |piece: Piece<'_>| {
                    said.say(&piece);
                    reply(piece);
                };
                lines.push(chunk, |line| self.line(line, &mut counted));
                self.passed.said += said.said;
                if lines.skipped() > 0 {
                    reply(Piece::Unrepeated);
                }
                self.form = ResponseForm::Stream(lines);
            }
            ResponseForm::Whole(copy) if copy.len() + chunk.len() <= MAX_WHOLE_BYTES => {
                copy.extend_from_slice(chunk)
            }
            ResponseForm::Whole(_) | ResponseForm::Unread => {
                self.form = ResponseForm::Unread;
                reply(Piece::Unrepeated);
            }
        }
        if !self.reserve() {
            match &mut self.form {
                ResponseForm::Stream(lines) => lines.skip(),
                form => *form = ResponseForm::Unread,
            }
            reply(Piece::Unrepeated);
        }
        if !self.is_stream() {
            self.first_token |= self.first_event.push(chunk) == Step::Token && !is_blank;
            self.passed.unread += chunk.len() as u64;
        }
        match self.first_token {
            true => Step::Token,
            false if self.early_events > early_events => Step::Event,
            false => Step::Nothing,
        }
    }

    /// Returns whether the worker may store the response for later requests.
    pub fn keeps(&self) -> bool {
        self.endpoint.facts().stores_responses
    }

    /// Handles a clean end of the response.
    pub fn end(&mut self, mut reply: impl FnMut(Piece<'_>)) {
        match std::mem::replace(&mut self.form, ResponseForm::Unread) {
            ResponseForm::Whole(copy) => {
                if copy.len() > self.judged_bytes {
                    self.error = error_in(&copy);
                }
                let mut said = Passed::default();
                let mut counted = |piece: Piece<'_>| {
                    said.say(&piece);
                    reply(piece);
                };
                self.endpoint.read_response(self, &copy, &mut counted);
                self.passed.said += said.said;
                self.complete = true;
            }
            ResponseForm::Unread => self.complete = true,
            // A stream is complete when it declares so, not when it stops.
            ResponseForm::Stream(lines) => self.form = ResponseForm::Stream(lines),
        }
    }

    fn line(&mut self, line: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
        match sse::data(line) {
            Some(b"[DONE]") => self.complete = true,
            Some(payload) => {
                if !self.first_token && !is_ping(payload) {
                    self.early_events += 1;
                }
                let tokens = self.passed.events;
                self.endpoint.read_response(self, payload, reply);
                // An event with a token is no error.
                if self.passed.events == tokens && self.error.is_none() {
                    self.error = error_in(payload);
                }
            }
            None => {}
        }
    }

    pub(crate) fn saw_token(&mut self) {
        self.first_token = true;
        self.passed.events += 1;
    }
}

/// Returns whether an event's data only keeps the connection alive: Anthropic's `ping`, or no data.
fn is_ping(payload: &[u8]) -> bool {
    let is_short = payload.len() <= 64;
    is_short && (payload.trim_ascii().is_empty() || payload.windows(6).any(|six| six == b"\"ping\""))
}

#[cfg(test)]
mod tests;
