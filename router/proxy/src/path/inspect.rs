//! Inspects bodies as they stream: finds the model of a form, and refuses fields that clients may not set.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::Proxy;
use protocol::error::ApiError;
use protocol::multipart::{self, Parts, Seen};
use protocol::names;
use protocol::steering::{self, Keys};

/// Bytes searched for the model. Clients write fields before files.
pub const LOOKED_AT: usize = 64 * 1024;
const MAX_MODEL_BYTES: usize = 2 * names::MAX_BYTES;

/// Why a body may not be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// This field steers an engine.
    Steering(&'static str),
    /// The form is ambiguous.
    Form,
    /// The body is JSON in an encoding other than UTF-8, which some engines accept.
    Encoding,
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Steering(field) => Self::Steering(field),
            Refused::Form => Self::MalformedForm,
            Refused::Encoding => Self::MalformedJson("not UTF-8 at line 1 column 1".to_owned()),
        }
    }
}

/// Inspects one body.
#[derive(Debug)]
pub struct Inspector {
    form: Option<Parts>,
    keys: Keys,
    refuses: bool,
    /// The first bytes, which show the encoding of JSON.
    first: Option<Vec<u8>>,
    is_model: bool,
    model: Vec<u8>,
    is_whole: bool,
    seen: usize,
}

impl Inspector {
    /// Inspects the body of a request with this head.
    pub fn new(proxy: &Proxy, head: &HeaderMap) -> Self {
        let kind = head
            .get(CONTENT_TYPE)
            .map(|kind| kind.to_str().unwrap_or_default());
        let boundary = kind.and_then(multipart::boundary);
        let may_be_json = kind.is_none_or(|kind| kind.contains("json"));
        Self {
            form: boundary.map(Parts::new),
            keys: Keys::default(),
            refuses: !proxy.state.config.http.transfer_fields,
            first: may_be_json.then(Vec::new),
            is_model: false,
            model: Vec::new(),
            is_whole: false,
            seen: 0,
        }
    }

    /// Inspects the next piece. Fails if the body must not be forwarded.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refused> {
        self.seen += piece.len();
        let mut found = None;
        if let Some(form) = &mut self.form {
            let (keys, model) = (&mut self.keys, &mut self.model);
            let (is_model, is_whole) = (&mut self.is_model, &mut self.is_whole);
            let read = form.push(piece, |seen| match seen {
                Seen::Part(name) => {
                    *keys = Keys::default();
                    *is_whole |= *is_model;
                    *is_model = !*is_whole && name == Some("model");
                    found = found.or_else(|| steering::field(name?.as_bytes()));
                }
                Seen::Value(value) => {
                    if *is_model {
                        let room = MAX_MODEL_BYTES.saturating_sub(model.len());
                        model.extend_from_slice(&value[..value.len().min(room)]);
                    }
                    found = found.or_else(|| keys.push(value));
                }
            });
            read.map_err(|_| Refused::Form)?;
        } else if self.refuses {
            if let Some(first) = &mut self.first {
                first.extend_from_slice(&piece[..piece.len().min(4 - first.len())]);
                if first.contains(&0) || first.starts_with(b"\xfe\xff") || first.starts_with(b"\xff\xfe") {
                    return Err(Refused::Encoding);
                }
                self.first.take_if(|first| first.len() == 4);
            }
            found = self.keys.push(piece);
        }
        match found {
            Some(field) if self.refuses => Err(Refused::Steering(field)),
            _ => Ok(()),
        }
    }

    /// Whether the search for the model is over.
    pub fn knows_model(&self) -> bool {
        self.form.is_none() || self.is_whole || self.seen >= LOOKED_AT
    }

    /// The model that the form requests, if found.
    pub fn model(&self) -> Option<String> {
        let model = std::str::from_utf8(&self.model).ok().filter(|_| self.is_whole)?;
        Some(model.trim().to_owned())
    }
}
