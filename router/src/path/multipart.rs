//! The model that a body in parts asks for (RFC 7578), as far as it can be seen in the beginning of the body.
//!
//! Files are large and pass as they come. The field `model` is small, and clients write fields before files; so only the
//! beginning is looked at, and a model that comes later is not found: the request then goes to any worker.

use memchr::memmem;

/// How much of a body is looked at.
pub const LOOKED_AT: usize = 64 * 1024;
/// Longest name of a model that is taken.
const MAX_MODEL_BYTES: usize = 1024;

/// What the beginning of a body says.
#[derive(Debug, PartialEq, Eq)]
pub enum Model {
    /// It asks for this model.
    Named(String),
    /// It does not say, as far as it can be seen at all.
    Unnamed,
    /// More of it has to be seen.
    More,
}

/// The boundary that a content type names.
#[must_use]
pub fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let named = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("boundary")
            .then(|| value.trim().trim_matches('"'))
    })?;
    (1..=70).contains(&named.len()).then_some(named)
}

/// Looks for the model in what has come of a body; `is_all` if nothing more will.
#[must_use]
pub fn model(boundary: &str, body: &[u8], is_all: bool) -> Model {
    let waiting = if is_all || body.len() >= LOOKED_AT {
        Model::Unnamed
    } else {
        Model::More
    };
    let delimiter = format!("--{boundary}");
    let Some(mut rest) = body.strip_prefix(delimiter.as_bytes()) else {
        let may_begin = delimiter.as_bytes().starts_with(body);
        return if may_begin { waiting } else { Model::Unnamed };
    };
    let delimiter = format!("\r\n{delimiter}");
    loop {
        if rest.starts_with(b"--") {
            return Model::Unnamed;
        }
        let Some(head) = memmem::find(rest, b"\r\n\r\n") else {
            return waiting;
        };
        let (fields, value) = (&rest[..head], &rest[head + 4..]);
        let Some(end) = memmem::find(value, delimiter.as_bytes()) else {
            return waiting;
        };
        if names_model(fields) {
            let value = &value[..end];
            return match std::str::from_utf8(value) {
                Ok(name) if value.len() <= MAX_MODEL_BYTES => Model::Named(name.trim().to_owned()),
                _ => Model::Unnamed,
            };
        }
        rest = &value[end + delimiter.len()..];
    }
}

/// Whether a part's head says that it is the field `model`.
fn names_model(fields: &[u8]) -> bool {
    let text = String::from_utf8_lossy(fields);
    text.split("\r\n").any(|field| {
        let Some((name, value)) = field.split_once(':') else {
            return false;
        };
        name.trim().eq_ignore_ascii_case("content-disposition")
            && value
                .split(';')
                .any(|part| matches!(part.trim(), "name=\"model\"" | "name=model"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &str = "--xyz\r\nContent-Disposition: form-data; name=\"language\"\r\n\r\nde\r\n--xyz\r\n\
        content-disposition: form-data; name=\"model\"\r\nContent-Type: text/plain\r\n\r\nwhisper-1\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\n\0\0--xyz\r\n--xyz--\r\n";

    #[test]
    fn the_boundary_is_found_however_it_is_written() {
        for (kind, found) in [
            ("multipart/form-data; boundary=xyz", Some("xyz")),
            (
                "Multipart/Form-Data; charset=utf-8; BOUNDARY=\"x y\"",
                Some("x y"),
            ),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/mixed; boundary=xyz", None),
            ("application/json; boundary=xyz", None),
        ] {
            assert_eq!(boundary(kind), found, "{kind}");
        }
    }

    #[test]
    fn the_model_is_found_as_soon_as_it_is_there() {
        let named = Model::Named("whisper-1".to_owned());
        assert_eq!(model("xyz", BODY.as_bytes(), true), named);
        let end = BODY.find("whisper-1\r\n--xyz").unwrap() + "whisper-1\r\n--xyz".len();
        for seen in 0..BODY.len() {
            let found = model("xyz", &BODY.as_bytes()[..seen], false);
            assert_eq!(
                found,
                if seen < end {
                    Model::More
                } else {
                    Model::Named("whisper-1".to_owned())
                },
                "{seen}"
            );
        }
    }

    #[test]
    fn a_body_without_one_has_none() {
        let without = BODY.replace("name=\"model\"", "name=\"other\"");
        assert_eq!(model("xyz", without.as_bytes(), true), Model::Unnamed);
        assert_eq!(model("abc", BODY.as_bytes(), false), Model::Unnamed);
        assert_eq!(model("xyz", b"", true), Model::Unnamed);
        let endless = [b"--xyz\r\n".to_vec(), vec![b'x'; LOOKED_AT]].concat();
        assert_eq!(model("xyz", &endless, false), Model::Unnamed);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(prop::sample::select(b"-x\r\n:;=model\"a".to_vec()), 0..200)) {
            let _ = model("x", &body, true);
        }
    }
}
