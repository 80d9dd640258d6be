//! A naive twin of [`Framing`](super::Framing): the same rules over all bytes at once, without state.

/// A request as the twin reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) body: Vec<u8>,
}

/// Reading of a stream by the twin.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Complete requests.
    pub(super) requests: Vec<Request>,
    /// Offset of the rejected line.
    pub(super) refused: Option<usize>,
}

struct Cursor<'a> {
    all: &'a [u8],
    at: usize,
}

/// Reason why reading stops.
enum End {
    /// The stream is incomplete.
    More,
    Refused(usize),
}

pub(super) fn read(all: &[u8]) -> Reading {
    let mut cursor = Cursor { all, at: 0 };
    let mut reading = Reading::default();
    loop {
        match request(&mut cursor) {
            Ok(request) => reading.requests.push(request),
            Err(End::More) => return reading,
            Err(End::Refused(at)) => {
                reading.refused = Some(at);
                return reading;
            }
        }
    }
}

impl<'a> Cursor<'a> {
    /// Returns the next line without its CRLF, and its offset.
    fn line(&mut self, longest: usize) -> Result<(&'a str, usize), End> {
        let start = self.at;
        let rest = &self.all[start..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return Err(if rest.len() > longest {
                End::Refused(start)
            } else {
                End::More
            });
        };
        self.at += end + 1;
        let line = &rest[..=end];
        if line.len() > longest || line.contains(&0) || !line.ends_with(b"\r\n") {
            return Err(End::Refused(start));
        }
        let line = &line[..line.len() - 2];
        if line.contains(&b'\r') {
            return Err(End::Refused(start));
        }
        // Non-ASCII bytes are mapped to characters one by one.
        let text: String = line.iter().copied().map(char::from).collect();
        Ok((Box::leak(text.into_boxed_str()), start))
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], End> {
        let rest = &self.all[self.at..];
        if (rest.len() as u64) < count {
            return Err(End::More);
        }
        self.at += count as usize;
        Ok(&rest[..count as usize])
    }
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

fn digits(text: &str, radix: u32) -> Option<u64> {
    let all = text.chars().all(|c| c.is_digit(radix));
    u64::from_str_radix(text, radix).ok().filter(|_| all)
}

fn pair(line: &str) -> Option<(String, &str)> {
    let (name, value) = line.split_once(':')?;
    let value = value.trim_matches([' ', '\t']);
    let is_control = |c: char| c.is_ascii_control() && c != '\t';
    if name.len() > 8 * 1024 || value.contains(is_control) {
        return None;
    }
    is_token(name).then(|| (name.to_ascii_lowercase(), value))
}

fn request(cursor: &mut Cursor<'_>) -> Result<Request, End> {
    let (line, start) = loop {
        let (line, start) = cursor.line(usize::MAX)?;
        if !line.is_empty() {
            break (line, start);
        }
    };
    let parts: Vec<&str> = line.split(' ').collect();
    let &[method, target, version] = &parts[..] else {
        return Err(End::Refused(start));
    };
    let is_11 = version == "HTTP/1.1";
    if !(is_11 || version == "HTTP/1.0") || !is_token(method) || target.is_empty() {
        return Err(End::Refused(start));
    }
    let is_invisible = |c: char| !c.is_ascii_graphic();
    if target.contains(is_invisible) || target.parse::<http::Uri>().is_err() {
        return Err(End::Refused(start));
    }
    let (mut lengths, mut encodings, mut hosts) = (Vec::new(), Vec::new(), 0);
    loop {
        let (line, start) = cursor.line(usize::MAX)?;
        let refused = || End::Refused(start);
        if line.is_empty() {
            if is_11 && hosts != 1 {
                return Err(refused());
            }
            break;
        }
        let (name, value) = pair(line).ok_or_else(refused)?;
        match name.as_str() {
            "content-length" => match digits(value, 10) {
                Some(length) if i64::try_from(length).is_ok() => lengths.push(length),
                _ => return Err(refused()),
            },
            "transfer-encoding" if !is_11 || !value.eq_ignore_ascii_case("chunked") => return Err(refused()),
            "transfer-encoding" => encodings.push(value),
            "host" => hosts += 1,
            _ => {}
        }
        if lengths.len() + encodings.len() > 1 || hosts > 1 {
            return Err(refused());
        }
    }
    let body = if encodings.is_empty() {
        cursor.bytes(lengths.first().copied().unwrap_or(0))?.to_vec()
    } else {
        chunks(cursor)?
    };
    Ok(Request {
        method: method.to_owned(),
        target: target.to_owned(),
        body,
    })
}

fn chunks(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, End> {
    let mut body = Vec::new();
    loop {
        let (line, start) = cursor.line(256)?;
        let refused = || End::Refused(start);
        let (size, extension) = line.split_once(';').unwrap_or((line, ""));
        if size.len() > 16 || extension.contains(|c: char| c.is_ascii_control() && c != '\t') {
            return Err(refused());
        }
        let size = digits(size, 16).ok_or_else(refused)?;
        if size == 0 {
            break;
        }
        body.extend_from_slice(cursor.bytes(size)?);
        let (line, start) = cursor.line(2)?;
        if !line.is_empty() {
            return Err(End::Refused(start));
        }
    }
    loop {
        let (line, start) = cursor.line(16 * 1024)?;
        if line.is_empty() {
            return Ok(body);
        }
        match pair(line) {
            Some((name, _)) if !matches!(&*name, "content-length" | "transfer-encoding" | "host") => {}
            _ => return Err(End::Refused(start)),
        }
    }
}
