//! Members of a body that the router reads.

use std::borrow::Cow;

use super::namespace::{Namespace, NamespaceValue};
use super::{Malformed, Parsed, Scanner, text};
use crate::claim::Allowed;
use crate::fingerprint::Draft;
use crate::routes::Endpoint;
use crate::steering::{self, Keys};
use crate::tenant::Tenant;
use crate::tenant::{Given, edits, foreign};

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Chat,
    Completions,
    Messages,
    Responses,
    Generate,
    None,
}

impl Form {
    fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Chat => Self::Chat,
            Endpoint::Completions => Self::Completions,
            Endpoint::Messages => Self::Messages,
            Endpoint::Responses => Self::Responses,
            Endpoint::Generate => Self::Generate,
            _ => Self::None,
        }
    }
}

pub(super) struct Members<'a, 'd> {
    endpoint: Endpoint,
    form: Form,
    tenant: Option<&'d Tenant>,
    draft: &'d mut Draft,
    model: Option<Cow<'a, str>>,
    stream: bool,
    namespace: Namespace<'a>,
    has_tools: bool,
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
    pub(super) fn new(endpoint: Endpoint, tenant: Option<&'d Tenant>, draft: &'d mut Draft) -> Self {
        Self {
            endpoint,
            form: Form::of(endpoint),
            tenant,
            draft,
            model: None,
            stream: false,
            namespace: Namespace::default(),
            has_tools: false,
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

    pub(super) fn read(mut self, body: &'a [u8]) -> Result<Parsed<'a>, Malformed> {
        self.allowed.bytes = body.len() as u64;
        let mut scanner = Scanner::new(body);
        if scanner.peek() == Some(b'[') {
            // A batch of bodies: an engine may read each element as a body.
            self.steering = Keys::default().push(body);
        }
        scanner.object(|scanner, key| {
            if self.is_prompt(key, scanner) {
                self.prompt(key, scanner)
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

    fn is_prompt(&self, key: &[u8], scanner: &mut Scanner<'a>) -> bool {
        match (self.form, key) {
            (Form::Chat | Form::Messages, b"messages")
            | (Form::Messages, b"system")
            | (Form::Responses, b"instructions" | b"input")
            | (Form::Completions, b"prompt") => true,
            // Of `text` and `input_ids`, the one that is absent or null is not the prompt.
            (Form::Generate, b"text" | b"input_ids") => scanner.peek() != Some(b'n'),
            (form, b"tools") => form != Form::None,
            _ => false,
        }
    }

    fn prompt(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        match key {
            b"messages" => self.draft.messages(scanner),
            b"system" | b"instructions" => self.draft.system(scanner),
            b"input" => self.draft.input(scanner),
            b"tools" => {
                self.has_tools = scanner.peek() == Some(b'[');
                self.draft.tools(scanner)
            }
            _ => self.draft.prompt(scanner),
        }
    }

    fn field(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        match key {
            b"model" => self.model = text(scanner)?,
            b"stream" => self.stream = scanner.skip()? == b"true",
            b"echo" | b"continue_final_message" => self.within |= scanner.skip()? == b"true",
            b"session_id" => self.session = NamespaceValue::read(scanner)?,
            b"prompt_cache_key" => self.cache_key = NamespaceValue::read(scanner)?,
            b"previous_response_id" if self.form == Form::Responses => {
                self.previous = text(scanner)?.filter(|id| !id.is_empty());
            }
            b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" | b"max_new_tokens" => {
                let asked = number(scanner)?;
                self.allowed.max_tokens = self.allowed.max_tokens.max(asked);
            }
            b"n" | b"best_of" => {
                let asked = number(scanner)?;
                self.allowed.choices = self.allowed.choices.max(asked.unwrap_or(0));
            }
            b"request_id" if self.form == Form::Responses => self.request_id = NamespaceValue::read(scanner)?,
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

    /// Skips a member, after checking whether it steers an engine or is forbidden to tenants.
    fn other(&mut self, key: &[u8], scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        let value = scanner.skip()?;
        if value == b"null" {
            return Ok(());
        }
        self.allowed.refers |= REFERS.contains(&key);
        if self.form == Form::Generate && key == b"sampling_params" {
            // `/generate` gives its bounds here.
            Scanner::new(value).object(|scanner, key| match key {
                b"max_new_tokens" | b"n" => self.field(key, scanner),
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
        if self.previous.is_some() {
            self.draft.clear();
        }
        let mut allowed = self.allowed;
        // An engine that calls tools computes several prompts for one request.
        let calls = self.form == Form::Responses && self.has_tools;
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
            has_tools: self.has_tools,
            previous: self.previous,
            fingerprint,
            edits,
            allowed,
            steering: self.steering,
            foreign: self.foreign,
        }
    }
}
