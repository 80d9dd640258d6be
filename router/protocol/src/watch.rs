//! What a passing answer says: first token, the reply's pieces, usage, finish reason, the engine's own times.
//!
//! Reads the answer of every endpoint that generates, streamed or whole, without holding it up: OpenAI's chat and completions
//! here ([`event`]), the others each in a file of its own. A streamed answer is read line by line; a whole one is copied
//! aside up to a bound and read at its end.

use policy::estimate::Finish;
use policy::slo::EngineTimes;
use policy::units::{Millis, Tokens};

use super::reply::Piece;
use super::routes::{Endpoint, Family};
use tailroute_http::unread::Unread;

mod event;
mod generate;
mod messages;
mod responses;
mod stencil;

use event::{Choice, Delta, Event, StreamFact};
use stencil::Stencil;

/// Longest whole answer that is read for its usage; a longer one still passes, unread.
const MAX_WHOLE_BYTES: usize = 8 << 20;
/// Bytes held of an answer that do not count among those held of all answers.
pub const UNCOUNTED_BYTES: usize = 64 << 10;
/// Most tokens that a worker is believed to have counted. Far beyond any model, and sums of such counts are safe.
const MAX_TOKENS: u64 = 1 << 32;

/// Token counts, as the worker reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the reply.
    pub completion: u64,
    /// Prompt tokens found in the worker's cache, if it says.
    pub cached: Option<u64>,
}

/// What has passed of an answer, for those that do not say what it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes, of an answer that is not read as it passes.
    unread: u64,
    /// Events with tokens in them.
    events: u64,
    /// Bytes of all that was said in them, of every choice.
    said: u64,
    /// Bytes of all of it.
    all: u64,
}

impl Passed {
    /// As how many tokens it counts, at so many per byte: those that were said, and one at least for every event that said
    /// something; of what was not read, as if all of it were text.
    #[must_use]
    pub fn tokens(self, per_byte: f64) -> Tokens {
        let bytes = if self.said + self.events > 0 {
            self.said
        } else {
            self.unread
        };
        Tokens(((bytes as f64 * per_byte).ceil() as u64).max(self.events))
    }

    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.all
    }

    fn say(&mut self, piece: &Piece<'_>) {
        self.said += match piece {
            Piece::Reasoning(text) | Piece::Text(text) => text.len(),
            Piece::Call { name, arguments, .. } => name.len() + arguments.len(),
            Piece::Unrepeated => 0,
        } as u64;
    }
}

/// All that an answer said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// What the worker counted.
    pub usage: Option<Usage>,
    /// How the answer ended.
    pub finish: Finish,
    /// What its prefill took by the engine's own clock, where it reports times per request.
    pub prefill: Option<Millis>,
    /// And how long it waited there before.
    pub queue: Option<Millis>,
    /// More than one choice was given: what was counted is of all of them.
    pub several: bool,
}

impl Seen {
    /// The engine's own times, if it told of all of them.
    #[must_use]
    pub fn engine(&self) -> Option<EngineTimes> {
        let (queue, prefill) = self.queue.zip(self.prefill)?;
        Some(EngineTimes { queue, prefill })
    }
}

/// Reads one answer as it passes.
#[derive(Debug)]
pub struct Watch {
    form: Form,
    /// Room for what is held of the answer, within what all of them may have together.
    room: Option<Unread>,
    stencil: Stencil,
    endpoint: Endpoint,
    /// The answer's own id, where it can be asked for by it; see `stored`.
    pub answer: Option<u64>,
    /// The text so far, where events repeat it.
    text: String,
    /// A token has passed.
    pub first_token: bool,
    /// Tokens' events seen in a stream.
    pub token_events: u64,
    /// What has passed.
    pub passed: Passed,
    /// The answer said that it is complete.
    pub complete: bool,
    /// A choice gave the reason for its end.
    pub finished: bool,
    /// What the worker counted.
    pub usage: Option<Usage>,
    finish: Finish,
    several: bool,
    prefill: Option<Millis>,
    queue: Option<Millis>,
}

#[derive(Debug)]
enum Form {
    Stream(sse::Lines),
    Whole(Vec<u8>),
    Unread,
}

impl Watch {
    /// A watch for an answer of this endpoint and content type.
    #[must_use]
    pub fn new(endpoint: Endpoint, content_type: Option<&str>, encoded: bool) -> Self {
        let form = match content_type {
            _ if encoded || !endpoint.generates() => Form::Unread,
            Some(kind) if kind.starts_with("text/event-stream") => Form::Stream(sse::Lines::default()),
            Some(kind) if kind.starts_with("application/json") => Form::Whole(Vec::new()),
            _ => Form::Unread,
        };
        Self {
            form,
            room: None,
            stencil: Stencil::default(),
            endpoint,
            answer: None,
            text: String::new(),
            first_token: false,
            token_events: 0,
            passed: Passed::default(),
            complete: false,
            finished: false,
            usage: None,
            finish: Finish::Other,
            several: false,
            prefill: None,
            queue: None,
        }
    }

    /// The same, which holds of its answer what this room allows. What has no room passes unread.
    #[must_use]
    pub fn within(mut self, room: Unread) -> Self {
        self.room = Some(room);
        self
    }

    /// Whether what is held of the answer has room.
    fn has_room(&mut self) -> bool {
        let held = match &self.form {
            Form::Stream(lines) => lines.held(),
            Form::Whole(copy) => copy.len(),
            Form::Unread => 0,
        };
        let counted = (held + self.text.len()).saturating_sub(UNCOUNTED_BYTES);
        self.room.as_mut().is_none_or(|room| room.resize(counted))
    }

    /// What it has said so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            usage: self.usage,
            finish: self.finish,
            prefill: self.prefill,
            queue: self.queue,
            several: self.several,
        }
    }

    /// Whether the answer is an event stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        matches!(self.form, Form::Stream(_))
    }

    /// Whose clients read the answer.
    #[must_use]
    pub fn family(&self) -> Family {
        self.endpoint.family()
    }

    /// Where the event stream stands; `None` if it is none.
    #[must_use]
    pub fn standing(&self) -> Option<sse::StreamPosition<'_>> {
        match &self.form {
            Form::Stream(lines) => Some(lines.standing()),
            _ => None,
        }
    }

    /// Takes the next chunk; pieces of the first choice in it are handed to `reply`.
    pub fn push(&mut self, chunk: &[u8], mut reply: impl FnMut(Piece<'_>)) {
        self.passed.all += chunk.len() as u64;
        match &mut self.form {
            Form::Stream(lines) => {
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
                self.form = Form::Stream(lines);
            }
            Form::Whole(copy) if copy.len() + chunk.len() <= MAX_WHOLE_BYTES => copy.extend_from_slice(chunk),
            Form::Whole(_) | Form::Unread => {
                self.form = Form::Unread;
                reply(Piece::Unrepeated);
            }
        }
        if !self.has_room() {
            match &mut self.form {
                Form::Stream(lines) => lines.skip(),
                form => *form = Form::Unread,
            }
            reply(Piece::Unrepeated);
        }
        if !self.is_stream() {
            self.first_token |= !chunk.is_empty();
            self.passed.unread += chunk.len() as u64;
        }
    }

    /// Whether its worker may keep the answer, for requests that name it.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.endpoint == Endpoint::Responses
    }

    /// The answer ended cleanly.
    pub fn end(&mut self, mut reply: impl FnMut(Piece<'_>)) {
        match std::mem::replace(&mut self.form, Form::Unread) {
            Form::Whole(copy) => {
                let mut said = Passed::default();
                let mut counted = |piece: Piece<'_>| {
                    said.say(&piece);
                    reply(piece);
                };
                if self.endpoint == Endpoint::Responses {
                    responses::whole(self, &copy, &mut counted);
                } else {
                    self.event(&copy, &mut counted);
                }
                self.passed.said += said.said;
                self.complete = true;
            }
            Form::Unread => self.complete = true,
            // A stream is complete when it says so, not when it stops.
            Form::Stream(lines) => self.form = Form::Stream(lines),
        }
    }

    fn line(&mut self, line: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
        match sse::data(line) {
            Some(b"[DONE]") => self.complete = true,
            Some(payload) => self.event(payload, reply),
            None => {}
        }
    }

    fn event(&mut self, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
        match self.endpoint {
            Endpoint::Messages => messages::read(self, json, reply),
            Endpoint::Responses => responses::event(self, json, reply),
            Endpoint::Generate => generate::read(self, json, reply),
            _ => self.choices(json, reply),
        }
    }

    fn choices(&mut self, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
        if let Some(piece) = self.stencil.read(json) {
            self.saw_token();
            reply(piece);
            return;
        }
        let Ok(event) = serde_json::from_slice::<Event<'_>>(json) else {
            reply(Piece::Unrepeated);
            return;
        };
        if self.is_stream() {
            self.stencil.learn(json, &event);
        }
        if let Some(usage) = event.usage {
            self.usage = Some(usage.into());
        }
        if let Some(times) = event.metrics {
            (self.prefill, self.queue) = (times.prefill(), times.queue());
        }
        let mut token = false;
        for choice in event.choices {
            self.finished |= choice.finish_reason.is_some();
            if choice.index == 0 {
                token |= self.first_choice(&choice, reply);
            } else {
                // Clients that go on with one go on with the first, and the worker holds it as it does the others.
                self.several = true;
                token |= says(&choice, &mut |piece| self.passed.say(&piece));
            }
        }
        if token {
            self.saw_token();
        }
    }

    fn saw_token(&mut self) {
        self.first_token = true;
        self.token_events += 1;
        self.passed.events += 1;
    }

    fn first_choice(&mut self, choice: &Choice<'_>, reply: &mut impl FnMut(Piece<'_>)) -> bool {
        self.finish = match choice.finish_reason.as_deref() {
            None => self.finish,
            Some("stop") => Finish::Stop,
            Some("length") => Finish::Length,
            Some("tool_calls" | "function_call") => Finish::ToolCalls,
            Some(_) => Finish::Other,
        };
        says(choice, reply)
    }
}

/// Hands on what a choice says. Returns whether there are tokens in it.
fn says(choice: &Choice<'_>, reply: &mut impl FnMut(Piece<'_>)) -> bool {
    let mut token = false;
    let mut hand_on = |piece: Piece<'_>| {
        token = true;
        reply(piece);
    };
    let delta = choice.delta.as_ref().or(choice.message.as_ref());
    match delta.map_or(&StreamFact::Nothing, Delta::reasoning) {
        StreamFact::Nothing => {}
        StreamFact::Text(text) => hand_on(Piece::Reasoning(text)),
        StreamFact::Else => hand_on(Piece::Unrepeated),
    }
    // A chat has the one, a completion the other.
    for text in [
        delta.map_or(&StreamFact::Nothing, |delta| &delta.content),
        &choice.text,
    ] {
        match text {
            StreamFact::Nothing => {}
            StreamFact::Text(text) => hand_on(Piece::Text(text)),
            StreamFact::Else => hand_on(Piece::Unrepeated),
        }
    }
    let Some(delta) = delta else { return token };
    // vLLM says `"tool_calls": []` in whole answers that call none.
    for (at, call) in delta.tool_calls.iter().flatten().enumerate() {
        // Only streams say which call it is; a whole answer has them in order.
        hand_on(call.piece(Some(call.index.unwrap_or(at as u64))));
    }
    if let Some(call) = &delta.function_call {
        hand_on(call.piece(None));
    }
    if delta.is_more() {
        hand_on(Piece::Unrepeated);
    }
    token
}

#[cfg(test)]
mod tests;
