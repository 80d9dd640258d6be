//! Bodies that pass as they come, looked at as they pass: the model that a form asks for, and what no client may say.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::app::App;
use protocol::error::ApiError;
use protocol::multipart::{self, Parts, Seen};
use protocol::names;
use protocol::steering::{self, Keys};

/// How much of a body is waited for to find its model: clients write fields before files.
pub const LOOKED_AT: usize = 64 * 1024;
/// Longest value of the field `model` that is taken; a longer one is no name.
const MAX_MODEL_BYTES: usize = 2 * names::MAX_BYTES;

/// Why a body may not be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It steers an engine by this field.
    Steering(&'static str),
    /// It is a form that cannot be read in one way.
    Form,
    /// It is JSON in another encoding than UTF-8, which some engines read all the same.
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

/// Looks at a body.
#[derive(Debug)]
pub struct Inspector {
    form: Option<Parts>,
    keys: Keys,
    /// What is found is refused.
    refuses: bool,
    /// The first bytes, where they tell the encoding of JSON.
    first: Option<Vec<u8>>,
    is_model: bool,
    /// The value of the field `model`, as far as it has come.
    model: Vec<u8>,
    /// Some of the field behind it has come.
    is_whole: bool,
    seen: usize,
}

impl Inspector {
    /// Looks at a body with this head, of which nothing has come yet.
    #[must_use]
    pub fn new(app: &App, head: &HeaderMap) -> Self {
        let kind = head
            .get(CONTENT_TYPE)
            .map(|kind| kind.to_str().unwrap_or_default());
        let boundary = kind.and_then(multipart::boundary);
        let may_be_json = kind.is_none_or(|kind| kind.contains("json"));
        Self {
            form: boundary.map(Parts::new),
            keys: Keys::default(),
            refuses: !app.config.http.transfer_fields,
            first: may_be_json.then(Vec::new),
            is_model: false,
            model: Vec::new(),
            is_whole: false,
            seen: 0,
        }
    }

    /// Looks at the next piece.
    ///
    /// # Errors
    /// If the body may not be passed on.
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

    /// Whether the model is known, or will not be.
    #[must_use]
    pub fn knows_model(&self) -> bool {
        self.form.is_none() || self.is_whole || self.seen >= LOOKED_AT
    }

    /// The model that it asks for, if that has come.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        let model = std::str::from_utf8(&self.model).ok().filter(|_| self.is_whole)?;
        Some(model.trim().to_owned())
    }
}
