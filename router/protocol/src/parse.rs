//! Parses a request's body in one pass: checks the JSON, reads the few fields that matter, fingerprints the prompt.
//!
//! Unknown fields, roles and content parts are not validated; that is the worker's task. A body that is not JSON is
//! refused with 400; JSON of an unexpected shape (`"messages": 5`) is forwarded without a fingerprint.

use std::borrow::Cow;
use std::cell::RefCell;

use crate::api::Endpoint;
use crate::claim::Allowed;
use crate::error::ApiError;
use crate::fingerprint::{Draft, Fingerprint};
use crate::json::{Malformed, Quoted, Scanner};
use crate::steering::{self, Keys};
use crate::tenant::{Edit, Given, Tenant, edits, foreign};

mod namespace;

use namespace::{Namespace, NamespaceValue};

/// Fields of a request's body that the router uses.
#[derive(Debug)]
pub struct Parsed<'a> {
    /// Name of the model, if given.
    pub model: Option<Cow<'a, str>>,
    /// Whether the client asks for a stream.
    pub stream: bool,
    /// Name of the conversation, if the body gives one.
    pub session: Option<Cow<'a, str>>,
    /// Whether the request declares tools.
    pub has_tools: bool,
    /// Id of the previous response that the request continues.
    pub previous: Option<Cow<'a, str>>,
    /// Fingerprint of the prompt.
    pub fingerprint: Fingerprint,
    /// Changes that the body needs before a worker receives it, if there are tenants.
    pub edits: Vec<Edit>,
    /// Bounds on the response's token counts.
    pub allowed: Allowed,
    /// First member that steers an engine.
    pub steering: Option<&'static str>,
    /// First member that tenants may not send, if there are tenants.
    pub foreign: Option<&'static str>,
}

thread_local! {
    /// Draft that is reused across requests to avoid allocations.
    static DRAFT: RefCell<Draft> = RefCell::default();
}

/// Reads the body of a request. The endpoint determines which members form the prompt, as in engines (`docs/http.md`).
/// Fails with [`ApiError::MalformedJson`], which has the position, if the body is not JSON.
pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Parsed<'_>, ApiError> {
    parse_for(None, endpoint, body)
}

/// Reads the body of a tenant's request like [`parse`]. The same prompt has different keys for each tenant.
pub fn parse_for<'a>(
    tenant: Option<&Tenant>,
    endpoint: Endpoint,
    body: &'a [u8],
) -> Result<Parsed<'a>, ApiError> {
    let refuse = |error: Malformed| ApiError::MalformedJson(error.describe(body));
    check_utf8(body).map_err(refuse)?;
    DRAFT.with_borrow_mut(|draft| {
        draft.clear();
        Members::new(endpoint, tenant, draft).read(body).map_err(refuse)
    })
}

fn check_utf8(body: &[u8]) -> Result<(), Malformed> {
    if body.iter().take(4).any(|byte| *byte == 0) {
        // UTF-16 or UTF-32, whose ASCII is valid UTF-8.
        return Err(Malformed {
            at: 0,
            what: "not UTF-8",
        });
    }
    simdutf8::basic::from_utf8(body).map(drop).map_err(|_| {
        // The fast check does not report the position.
        let at = std::str::from_utf8(body)
            .err()
            .map_or(0, |error| error.valid_up_to());
        Malformed {
            at,
            what: "not UTF-8",
        }
    })
}

/// Reads a string; skips any other value.
fn text<'a>(scanner: &mut Scanner<'a>) -> Result<Option<Cow<'a, str>>, Malformed> {
    if scanner.peek() == Some(b'"') {
        scanner.quoted().map(Quoted::text).map(Some)
    } else {
        scanner.skip().map(|_| None)
    }
}

/// Members that add prompt tokens which the body does not contain: media, state stored in an engine, other templates.
const REFERS: [&[u8]; 9] = [
    b"image_data",
    b"audio_data",
    b"video_data",
    b"multi_modal_data",
    b"conversation",
    b"prompt",
    b"prompt_embeds",
    b"chat_template",
    b"documents",
];

fn number(scanner: &mut Scanner<'_>) -> Result<Option<u64>, Malformed> {
    let said = scanner.skip()?;
    Ok(std::str::from_utf8(said).ok().and_then(|said| said.parse().ok()))
}

/// Members of a body that the router reads.
struct Members<'a, 'd> {
    endpoint: Endpoint,
    tenant: Option<&'d Tenant>,
    draft: &'d mut Draft,
    model: Option<Cow<'a, str>>,
    stream: bool,
    namespace: Namespace<'a>,
    /// Whether the response repeats the prompt or continues its last message, so that its keys do not match those of
    /// the next turn.
    within: bool,
    session: Option<NamespaceValue<'a>>,
    cache_key: Option<NamespaceValue<'a>>,
    request_id: Option<NamespaceValue<'a>>,
    previous: Option<Cow<'a, str>>,
    priority: bool,
    rid: bool,
    allowed: Allowed,
    steering: Option<&'static str>,
    foreign: Option<&'static str>,
}

impl<'a, 'd> Members<'a, 'd> {
    fn new(endpoint: Endpoint, tenant: Option<&'d Tenant>, draft: &'d mut Draft) -> Self {
        Self {
            endpoint,
            tenant,
            draft,
            model: None,
            stream: false,
            namespace: Namespace::default(),
            within: false,
            session: None,
            cache_key: None,
            request_id: None,
            previous: None,
            priority: false,
            rid: false,
            allowed: Allowed::default(),
            steering: None,
            foreign: None,
        }
    }

    fn read(mut self, body: &'a [u8]) -> Result<Parsed<'a>, Malformed> {
        self.allowed.bytes = body.len() as u64;
        let mut scanner = Scanner::new(body);
        if scanner.peek() == Some(b'[') {
            // A batch of bodies: an engine may read each element as a body.
            self.steering = Keys::default().push(body);
        }
        scanner.object(|scanner, key| {
            if self.endpoint.read_prompt(key, scanner, self.draft)? {
                Ok(())
            } else {
                self.field(key, scanner)
            }
        })?;
        if scanner.peek().is_some() {
            return Err(Malformed {
                at: scanner.position(),
                what: "more follows the JSON value",
            });
        }
        Ok(self.parsed())
    }

    fn field(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        match key {
            b"model" => self.model = text(scanner)?,
            b"stream" => self.stream = scanner.skip()? == b"true",
            b"echo" | b"continue_final_message" => self.within |= scanner.skip()? == b"true",
            b"session_id" => self.session = NamespaceValue::read(scanner)?,
            b"prompt_cache_key" => self.cache_key = NamespaceValue::read(scanner)?,
            b"previous_response_id" if self.endpoint.facts().stores_responses => {
                self.previous = text(scanner)?.filter(|id| !id.is_empty());
            }
            b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" | b"max_new_tokens" => {
                self.read_max_tokens(scanner)?;
            }
            b"n" | b"best_of" => self.read_choices(scanner)?,
            b"request_id" if self.endpoint.facts().stores_responses => {
                self.request_id = NamespaceValue::read(scanner)?;
            }
            b"priority" if self.tenant.is_some() => {
                self.priority = true;
                scanner.skip()?;
            }
            b"rid" if self.tenant.is_some() => {
                self.rid = true;
                scanner.skip()?;
            }
            _ => match Namespace::place(key) {
                Some(place) => self.namespace.take(place, scanner)?,
                None => self.other(key, scanner)?,
            },
        }
        Ok(())
    }

    fn read_max_tokens(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        let asked = number(scanner)?;
        self.allowed.max_tokens = self.allowed.max_tokens.max(asked);
        Ok(())
    }

    fn read_choices(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        let asked = number(scanner)?;
        self.allowed.choices = self.allowed.choices.max(asked.unwrap_or(0));
        Ok(())
    }

    /// Skips a member, after checking whether it steers an engine or is forbidden to tenants.
    fn other(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        let value = scanner.skip()?;
        if value == b"null" {
            return Ok(());
        }
        self.allowed.refers |= REFERS.contains(&key);
        let bounds = self.endpoint.facts().nested_bounds.as_ref();
        if let Some(bounds) = bounds.filter(|bounds| key == bounds.member.as_bytes()) {
            Scanner::new(value).object(|scanner, key| match key {
                _ if key == bounds.tokens.as_bytes() => self.read_max_tokens(scanner),
                _ if key == bounds.choices.as_bytes() => self.read_choices(scanner),
                _ => scanner.skip().map(drop),
            })?;
        }
        let within = |mut keys: Keys| steering::is_container(key).then(|| keys.push(value)).flatten();
        let found = steering::field(key).or_else(|| within(Keys::default()));
        self.steering = self.steering.or(found);
        if self.tenant.is_some() {
            let found = foreign(key).or_else(|| within(Keys::of(foreign)));
            self.foreign = self.foreign.or(found);
        }
        Ok(())
    }

    fn parsed(self) -> Parsed<'a> {
        let has_tools = self.draft.has_tools;
        if self.previous.is_some() {
            self.draft.clear();
        }
        let mut allowed = self.allowed;
        // An engine that calls tools computes several prompts for one request.
        let calls = has_tools && self.endpoint.facts().runs_tools;
        allowed.refers |= calls || self.previous.is_some() || self.draft.refers();
        let own = self.namespace.salt();
        let given = Given {
            salt: self.namespace.cache_salt(),
            session: self.session.as_ref().map(NamespaceValue::as_str),
            cache_key: self.cache_key.as_ref().map(NamespaceValue::as_str),
            request_id: self.request_id.as_ref().map(NamespaceValue::as_str),
            priority: self.priority,
            rid: self.rid,
        };
        let edits = self
            .tenant
            .map_or_else(Vec::new, |tenant| edits(tenant, self.endpoint, &given));
        let all = self.tenant.map(|tenant| tenant.salt(own.as_deref()));
        let mut fingerprint = self.draft.finish(
            self.model.as_deref().unwrap_or_default(),
            all.as_deref().or(own.as_deref()),
        );
        if self.within {
            fingerprint.reply = None;
        }
        Parsed {
            model: self.model,
            stream: self.stream,
            session: self
                .session
                .and_then(NamespaceValue::name)
                .or(self.cache_key.and_then(NamespaceValue::name)),
            has_tools,
            previous: self.previous,
            fingerprint,
            edits,
            allowed,
            steering: self.steering,
            foreign: self.foreign,
        }
    }
}

#[cfg(test)]
mod tests;
