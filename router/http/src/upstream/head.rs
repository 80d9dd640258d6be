//! Reads the head of a response.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};

use super::decoder::BodyFraming;

/// Size in bytes of the largest head of a response, including the interim responses before it.
pub const MAX_HEAD_BYTES: usize = 128 * 1024;
/// Largest number of interim responses (1xx) before the final one.
const MAX_INTERIM: usize = 16;
const MAX_FIELDS: usize = 128;

#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) framing: BodyFraming,
    /// Whether the connection may be reused once the body has ended.
    pub(super) keeps_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadError {
    #[error("the head of the response cannot be parsed: {0}")]
    Syntax(httparse::Error),
    #[error("the head of the response has an invalid field or status")]
    Value,
    #[error("the response's length is ambiguous")]
    Length,
    #[error("the head of the response is too large")]
    TooLarge,
    #[error("the response switches protocols without an upgrade request")]
    Switched,
}

#[derive(Debug, Default)]
pub(super) struct Reading(Vec<u8>);

impl Reading {
    /// Adds a piece. Returns the head once it is complete, and the bytes after it. Fails if the bytes are not the head
    /// of a response, or the framing is ambiguous.
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<Option<(ResponseHead, Bytes)>, HeadError> {
        let bytes = if self.0.is_empty() {
            piece
        } else {
            self.0.extend_from_slice(piece);
            // The head is parsed again only when a line ends, not for each byte.
            if !piece.contains(&b'\n') && self.0.len() <= MAX_HEAD_BYTES {
                return Ok(None);
            }
            &self.0
        };
        match read(bytes)? {
            Some((head, taken)) => Ok(Some((head, Bytes::copy_from_slice(&bytes[taken..])))),
            None if bytes.len() > MAX_HEAD_BYTES => Err(HeadError::TooLarge),
            None => {
                if self.0.is_empty() {
                    self.0 = bytes.to_vec();
                }
                Ok(None)
            }
        }
    }
}

/// Parses the head at the start of `bytes`, skipping interim responses (1xx). Returns the head and its length in bytes;
/// `None` if it is incomplete. Fails if the bytes are not the head of a response, or the framing is ambiguous.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, HeadError> {
    let mut from = 0;
    for _ in 0..=MAX_INTERIM {
        let mut fields = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_FIELDS];
        let mut parsed = httparse::Response::new(&mut []);
        let status = httparse::ParserConfig::default()
            .parse_response_with_uninit_headers(&mut parsed, &bytes[from..], &mut fields)
            .map_err(HeadError::Syntax)?;
        let httparse::Status::Complete(length) = status else {
            return Ok(None);
        };
        let code = parsed.code.ok_or(HeadError::Value)?;
        match code {
            101 => return Err(HeadError::Switched),
            100..200 => from += length,
            _ => {
                let whole = Bytes::copy_from_slice(&bytes[from..from + length]);
                let head = head(
                    code,
                    parsed.version == Some(1),
                    parsed.headers,
                    &whole,
                    bytes,
                    from,
                )?;
                return Ok(Some((head, from + length)));
            }
        }
    }
    Err(HeadError::TooLarge)
}

/// Builds the head. `whole` is a copy of `bytes` from `from` on; the header values are slices of it, which takes one
/// allocation for all of them.
fn head(
    code: u16,
    is_11: bool,
    fields: &[httparse::Header<'_>],
    whole: &Bytes,
    bytes: &[u8],
    from: usize,
) -> Result<ResponseHead, HeadError> {
    let status = StatusCode::from_u16(code).map_err(|_| HeadError::Value)?;
    let base = bytes.as_ptr().addr() + from;
    let mut headers = HeaderMap::with_capacity(fields.len() + 4);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Value)?;
        let at = field.value.as_ptr().addr().wrapping_sub(base);
        let value = match whole.get(at..at + field.value.len()) {
            Some(_) if !field.value.is_empty() => {
                HeaderValue::from_maybe_shared(whole.slice(at..at + field.value.len()))
            }
            _ => HeaderValue::from_bytes(field.value),
        };
        headers.append(name, value.map_err(|_| HeadError::Value)?);
    }
    let version = if is_11 { Version::HTTP_11 } else { Version::HTTP_10 };
    let (framing, is_plain) = framing(status, version, &mut headers)?;
    let closes = headers.get_all(CONNECTION).iter().any(|value| {
        let Ok(value) = value.to_str() else { return true };
        value
            .split(',')
            .any(|option| option.trim().eq_ignore_ascii_case("close"))
    });
    Ok(ResponseHead {
        status,
        headers,
        framing,
        keeps_alive: version == Version::HTTP_11 && is_plain && !closes && framing != BodyFraming::UntilClose,
    })
}

/// Whether a response's framing is beyond doubt; if not, the connection is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsPlain(pub(super) bool);

/// Applies the framing rules of [`read`] to a response of hyper's client, which passes on transfer codings that it does
/// not decode, and lengths that do not apply. Fails if the framing is ambiguous.
pub(super) fn vetted<B>(response: &mut Response<B>) -> Result<IsPlain, HeadError> {
    let (status, version) = (response.status(), response.version());
    if version > Version::HTTP_11 {
        return Ok(IsPlain(true));
    }
    let (_, is_plain) = framing(status, version, response.headers_mut())?;
    Ok(IsPlain(is_plain))
}

/// Determines the framing of the body (RFC 9112, section 6.3) and removes header fields that contradict it. The flag is
/// false if there was any doubt; the connection is then not reused.
fn framing(
    status: StatusCode,
    version: Version,
    headers: &mut HeaderMap,
) -> Result<(BodyFraming, bool), HeadError> {
    let length = length(headers)?;
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let (coding, is_one) = (codings.next(), codings.next().is_none());
    let is_coded = coding.is_some();
    let is_chunked = coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    let is_bare = matches!(status, StatusCode::NO_CONTENT | StatusCode::SWITCHING_PROTOCOLS);
    // With a transfer coding, the content length does not apply.
    if is_coded || is_bare {
        headers.remove(CONTENT_LENGTH);
    }
    if is_bare {
        headers.remove(TRANSFER_ENCODING);
    }
    // A repeated equal length is collapsed into one.
    if let Some(length) = length
        && headers.contains_key(CONTENT_LENGTH)
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    if is_bare || status == StatusCode::NOT_MODIFIED {
        return Ok((BodyFraming::Length(0), !is_coded));
    }
    match length {
        _ if is_coded => {
            // Other codings would be forwarded undecoded as plain content. HTTP/1.0 has no transfer codings.
            if !is_chunked || !is_one || version < Version::HTTP_11 {
                return Err(HeadError::Length);
            }
            Ok((BodyFraming::Chunked, length.is_none()))
        }
        Some(length) => Ok((BodyFraming::Length(length), true)),
        None => Ok((BodyFraming::UntilClose, true)),
    }
}

/// Returns the content length, if there is one. Fails unless all fields agree.
fn length(headers: &HeaderMap) -> Result<Option<u64>, HeadError> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let digits = value.to_str().map_err(|_| HeadError::Length)?;
        let one = Some(digits)
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse::<u64>().ok())
            .ok_or(HeadError::Length)?;
        if length.is_some_and(|length| length != one) {
            return Err(HeadError::Length);
        }
        length = Some(one);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(fields: &str) -> Result<(BodyFraming, bool), HeadError> {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let (head, taken) = read(text.as_bytes())?.unwrap();
        assert_eq!(taken, text.len());
        Ok((head.framing, head.keeps_alive))
    }

    #[test]
    fn ambiguous_or_repeated_framing_is_rejected_or_ends_the_connection() {
        assert_eq!(
            framed("content-length: 5\r\n"),
            Ok((BodyFraming::Length(5), true))
        );
        assert_eq!(
            framed("Content-Length: 5\r\nContent-Length: 5\r\n"),
            Ok((BodyFraming::Length(5), true))
        );
        assert_eq!(
            framed("transfer-encoding: Chunked\r\n"),
            Ok((BodyFraming::Chunked, true))
        );
        assert_eq!(framed(""), Ok((BodyFraming::UntilClose, false)));
        assert_eq!(
            framed("content-length: 5\r\nconnection: x, Close\r\n"),
            Ok((BodyFraming::Length(5), false))
        );
        // The chunked coding takes precedence, but the connection is not reused.
        assert_eq!(
            framed("content-length: 5\r\ntransfer-encoding: chunked\r\n"),
            Ok((BodyFraming::Chunked, false))
        );
        assert_eq!(
            read(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap_err(),
            HeadError::Length
        );
        for doubtful in [
            "content-length: 5\r\ncontent-length: 6\r\n",
            "content-length: +5\r\n",
            "content-length: 5, 5\r\n",
            "content-length: \r\n",
            "content-length: 99999999999999999999\r\n",
            "transfer-encoding: gzip\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            assert_eq!(framed(doubtful), Err(HeadError::Length), "{doubtful}");
        }
    }

    #[test]
    fn framing_headers_that_do_not_apply_are_removed() {
        for (status, fields, kept) in [
            (200, "content-length: 5\r\ntransfer-encoding: chunked\r\n", None),
            (200, "content-length: 5\r\ncontent-length: 5\r\n", Some("5")),
            (204, "content-length: 5\r\n", None),
            (304, "content-length: 5\r\n", Some("5")),
            (304, "content-length: 5\r\ncontent-length: 5\r\n", Some("5")),
            (304, "content-length: 5\r\ntransfer-encoding: chunked\r\n", None),
        ] {
            let text = format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
            let (head, _) = read(text.as_bytes()).unwrap().unwrap();
            let lengths: Vec<_> = head.headers.get_all(CONTENT_LENGTH).iter().collect();
            assert_eq!(lengths, kept.into_iter().collect::<Vec<_>>(), "{status} {fields}");
        }
    }

    #[test]
    fn responses_of_hypers_client_are_checked_by_the_same_rules() {
        let vet = |fields: &[(&str, &str)]| {
            let mut response = Response::builder();
            for (name, value) in fields {
                response = response.header(*name, *value);
            }
            let mut response = response.body(()).unwrap();
            vetted(&mut response).map(|is_plain| (response.headers().len(), is_plain))
        };
        assert_eq!(vet(&[("content-length", "5")]), Ok((1, IsPlain(true))));
        assert_eq!(
            vet(&[("content-length", "5"), ("transfer-encoding", "chunked")]),
            Ok((1, IsPlain(false)))
        );
        assert_eq!(
            vet(&[("transfer-encoding", "gzip, chunked")]),
            Err(HeadError::Length)
        );
        assert_eq!(vet(&[("transfer-encoding", "gzip")]), Err(HeadError::Length));
    }

    #[test]
    fn interim_responses_are_skipped() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\nx-a: 1\r\nx-e:\r\n\r\nmore";
        for end in 0..text.len() - 4 {
            assert!(read(&text[..end]).unwrap().is_none(), "{end}");
        }
        let endless = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(MAX_INTERIM + 1);
        assert_eq!(read(&endless).unwrap_err(), HeadError::TooLarge);
        let (head, taken) = read(text).unwrap().unwrap();
        assert_eq!(
            (head.status, &text[taken..]),
            (StatusCode::NO_CONTENT, &b"more"[..])
        );
        assert_eq!(
            (&head.headers["x-a"], &head.headers["x-e"]),
            (&HeaderValue::from_static("1"), &HeaderValue::from_static(""))
        );
        assert_eq!((head.framing, head.keeps_alive), (BodyFraming::Length(0), true));
        assert!(
            !read(b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n")
                .unwrap()
                .unwrap()
                .0
                .keeps_alive
        );
        let switched = read(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
        assert_eq!(switched.unwrap_err(), HeadError::Switched);
    }
}
