//! Inspects bodies as they stream: finds the model of a form, and refuses fields that clients may not set.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use protocol::error::ApiError;
use protocol::model::{self, BYTE_ORDER_MARK, Named};
use protocol::multipart::{self, Parts, Seen, Unreadable};
use protocol::names;
use protocol::steering::{self, Keys};
use state::Routing;

/// Largest number of bytes of a form that are searched for the model where the model does not decide the worker.
const LOOKED_AT: usize = 64 * 1024;
const MAX_MODEL_BYTES: usize = 2 * names::MAX_BYTES;

/// The part of a body that is searched for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The body is not searched.
    Nothing,
    /// The beginning of a form is searched.
    Beginning,
    /// The body is searched until the model is found, because the model decides which workers may get the request.
    Whole,
}

/// The reason why a body may not be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A field steers an engine.
    Steering(&'static str),
    /// The form is malformed or ambiguous.
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

#[derive(Debug)]
enum BodyFormat {
    Form(Result<Parts, Unreadable>),
    /// A form in the encoding of queries.
    Urlencoded,
    Other,
}

impl BodyFormat {
    fn of(head: &HeaderMap) -> Self {
        let kind = head
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .and_then(multipart::boundary);
        match kind {
            Some(boundary) => Self::Form(boundary.map(Parts::new)),
            None if model::is_urlencoded(head) => Self::Urlencoded,
            None => Self::Other,
        }
    }
}

/// The part of a form that names the model.
#[derive(Debug, Default)]
struct ModelPart {
    is_current: bool,
    is_whole: bool,
    value: Vec<u8>,
}

impl ModelPart {
    /// Begins the part of this name. Fails for a second model: parsers differ in which one they use.
    fn begin(&mut self, name: Option<&str>) -> Result<(), Refused> {
        self.is_whole |= self.is_current;
        self.is_current = name == Some("model");
        if self.is_current && self.is_whole {
            return Err(Refused::Form);
        }
        Ok(())
    }

    fn push(&mut self, value: &[u8]) {
        if self.is_current {
            let room = MAX_MODEL_BYTES.saturating_sub(self.value.len());
            self.value.extend_from_slice(&value[..value.len().min(room)]);
        }
    }

    fn named(&self) -> Named {
        if !self.is_whole {
            return Named::Nothing;
        }
        match std::str::from_utf8(&self.value) {
            Ok(name) if name.trim().is_empty() => Named::Nothing,
            Ok(name) => Named::Model(name.trim().to_owned()),
            Err(_) => Named::Unread,
        }
    }
}

/// Inspection of one body as it streams.
#[derive(Debug)]
pub struct Inspector {
    kind: BodyFormat,
    keys: Keys,
    refuses: bool,
    /// The first bytes, which show the encoding of JSON.
    first: Option<Vec<u8>>,
    /// The first byte of text, which shows whether a body may be JSON.
    text: Option<u8>,
    model: ModelPart,
    seen: usize,
}

impl Inspector {
    /// Inspects the body of a request with this head.
    pub fn new(routing: &Routing, head: &HeaderMap) -> Self {
        Self::with(head, !routing.config.http.transfer_fields)
    }

    fn with(head: &HeaderMap, refuses: bool) -> Self {
        let kind = head
            .get(CONTENT_TYPE)
            .map(|kind| kind.to_str().unwrap_or_default());
        let may_be_json = kind.is_none_or(|kind| kind.contains("json"));
        Self {
            kind: BodyFormat::of(head),
            keys: Keys::default(),
            refuses,
            first: may_be_json.then(Vec::new),
            text: None,
            model: ModelPart::default(),
            seen: 0,
        }
    }

    /// Inspects the next piece. Fails if the body must not be forwarded.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refused> {
        self.seen += piece.len();
        let found = match &mut self.kind {
            BodyFormat::Form(Err(Unreadable)) => return Err(Refused::Form),
            BodyFormat::Form(Ok(form)) => push_form(form, &mut self.model, &mut self.keys, piece)?,
            BodyFormat::Urlencoded | BodyFormat::Other => {
                let is_text = |byte: &&u8| !byte.is_ascii_whitespace() && !BYTE_ORDER_MARK.contains(byte);
                self.text = self.text.or_else(|| piece.iter().find(is_text).copied());
                if self.refuses {
                    self.check_encoding(piece)?;
                    self.keys.push(piece)
                } else {
                    None
                }
            }
        };
        match found {
            Some(field) if self.refuses => Err(Refused::Steering(field)),
            _ => Ok(()),
        }
    }

    fn check_encoding(&mut self, piece: &[u8]) -> Result<(), Refused> {
        let Some(first) = &mut self.first else {
            return Ok(());
        };
        first.extend_from_slice(&piece[..piece.len().min(4 - first.len())]);
        if first.contains(&0) || first.starts_with(b"\xfe\xff") || first.starts_with(b"\xff\xfe") {
            return Err(Refused::Encoding);
        }
        self.first.take_if(|first| first.len() == 4);
        Ok(())
    }

    /// Returns whether more of the body would not change the model that is found.
    pub fn is_over(&self, search: Search) -> bool {
        match (search, &self.kind) {
            (Search::Nothing, _) => true,
            (_, BodyFormat::Form(_)) if self.model.is_whole => true,
            (Search::Beginning, BodyFormat::Form(_)) => self.seen >= LOOKED_AT,
            (Search::Beginning, _) => true,
            (Search::Whole, BodyFormat::Other) => self.text.is_some_and(|text| text != b'{'),
            (Search::Whole, _) => false,
        }
    }

    /// Returns the model that the request names in `body`, which has been inspected. An empty body names none.
    pub fn model(&self, body: &[u8]) -> Named {
        match &self.kind {
            _ if self.seen == 0 => Named::Nothing,
            BodyFormat::Form(_) => self.model.named(),
            // Some clients send JSON with this type.
            BodyFormat::Urlencoded if self.text != Some(b'{') => model::in_query(body),
            _ => model::in_json(body),
        }
    }
}

/// Inspects the next piece of a form. Returns the first field that steers an engine.
fn push_form(
    form: &mut Parts,
    model: &mut ModelPart,
    keys: &mut Keys,
    piece: &[u8],
) -> Result<Option<&'static str>, Refused> {
    let (mut found, mut begun) = (None, Ok(()));
    let read = form.push(piece, |seen| match seen {
        Seen::Part(name) => {
            *keys = Keys::default();
            begun = begun.and_then(|()| model.begin(name));
            found = found.or_else(|| steering::field(name?.as_bytes()));
        }
        Seen::Value(value) => {
            model.push(value);
            found = found.or_else(|| keys.push(value));
        }
    });
    read.map_err(|Unreadable| Refused::Form)?;
    begun?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const FORM: &str = "multipart/form-data; boundary=xyz";

    /// Inspects a body in pieces of this size until the model is known. Returns the model and the number of bytes read.
    fn read(kind: &str, body: &str, search: Search, size: usize) -> Result<(Named, usize), Refused> {
        let mut head = HeaderMap::new();
        head.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
        let (mut inspector, mut read) = (Inspector::with(&head, true), 0);
        for piece in body.as_bytes().chunks(size) {
            if inspector.is_over(search) {
                break;
            }
            inspector.push(piece)?;
            read += piece.len();
        }
        Ok((inspector.model(&body.as_bytes()[..read]), read))
    }

    fn part(name: &str, value: &str) -> String {
        format!("--xyz\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn model(name: &str) -> Named {
        Named::Model(name.to_owned())
    }

    #[test]
    fn a_model_behind_a_long_file_is_read_only_where_it_decides_the_worker() {
        let body = part("file", &"f".repeat(200_000)) + &part("model", " a ") + "--xyz--\r\n";
        for size in [1, 1000, body.len()] {
            assert_eq!(read(FORM, &body, Search::Whole, size).unwrap().0, model("a"));
        }
        let (named, seen) = read(FORM, &body, Search::Beginning, 1024).unwrap();
        assert_eq!((named, seen), (Named::Nothing, LOOKED_AT));
        assert_eq!(read(FORM, &body, Search::Nothing, 1024), Ok((Named::Nothing, 0)));
    }

    #[test]
    fn a_form_is_not_read_beyond_its_model() {
        let body = part("model", "a") + &part("file", &"f".repeat(10_000)) + "--xyz--\r\n";
        let (named, seen) = read(FORM, &body, Search::Whole, 100).unwrap();
        assert_eq!(named, model("a"));
        assert!(seen < 300, "{seen}");
    }

    #[test]
    fn each_kind_of_body_names_its_model() {
        let urlencoded = "application/x-www-form-urlencoded; charset=utf-8";
        for (kind, body, named) in [
            ("application/json", r#"{"x":1,"model":"a"}"#, model("a")),
            ("application/json", "\u{feff} {\"model\":\"a\"}", model("a")),
            ("text/plain", r#"{"model":"a"}"#, model("a")),
            (urlencoded, r#"{"model":"a"}"#, model("a")),
            (urlencoded, "x=1&model=a%2Fb", model("a/b")),
            (urlencoded, "x=1", Named::Nothing),
            ("application/json", "{}", Named::Nothing),
            ("application/json", "", Named::Nothing),
            ("application/json", r#"{"model":"a""#, Named::Unread),
            ("application/json", r#"[{"model":"a"}]"#, Named::Unread),
            ("application/octet-stream", "\u{1}model", Named::Unread),
            (FORM, "--xyz--\r\n", Named::Nothing),
        ] {
            for size in [1, 100] {
                let read = read(kind, body, Search::Whole, size).unwrap();
                assert_eq!(read.0, named, "{kind}: {body}");
            }
        }
    }

    #[test]
    fn a_body_that_cannot_be_json_is_not_read_for_its_model() {
        let body = " \r\n".to_owned() + &"x".repeat(100_000);
        let (named, seen) = read("application/octet-stream", &body, Search::Whole, 1000).unwrap();
        assert_eq!((named, seen), (Named::Unread, 1000));
    }

    #[test]
    fn a_form_that_parsers_read_differently_is_refused() {
        let two = part("model", "a") + &part("x", "1") + &part("model", "b") + "--xyz--\r\n";
        for size in [1, 1000] {
            let mut inspector = Inspector::with(&HeaderMap::new(), true);
            inspector.kind = BodyFormat::Form(Ok(Parts::new("xyz")));
            let pushed = two
                .as_bytes()
                .chunks(size)
                .try_for_each(|piece| inspector.push(piece));
            assert_eq!(pushed, Err(Refused::Form));
        }
        for kind in [
            "multipart/form-data",
            "multipart/form-data; boundary=a; boundary=b",
        ] {
            assert_eq!(
                read(kind, "--a--", Search::Whole, 10),
                Err(Refused::Form),
                "{kind}"
            );
        }
    }
}
