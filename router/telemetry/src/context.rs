//! W3C trace context (<https://www.w3.org/TR/trace-context/>).
//!
//! With tracing enabled, requests to workers name the router's span as their parent, within the client's trace. Without
//! tracing, a valid `traceparent` is forwarded unchanged: an unrecorded parent would break the trace between client and
//! worker. `tracestate` is forwarded in both cases. If the client's context is missing or invalid, the router creates
//! one, so that workers' logs can be found by the request; it is sampled only if the router will keep the trace.

use std::sync::atomic::{AtomicU64, Ordering};

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Header with the trace and the sender's span.
pub const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");

/// Id of a trace: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 32]);

impl TraceId {
    /// Reads the trace of a `traceparent` that was [settled](settle).
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::read(headers.get(&PARENT)?.as_bytes().get(3..35)?)
    }

    /// Parses 32 hexadecimal digits.
    pub fn read(digits: &[u8]) -> Option<Self> {
        let digits: [u8; 32] = digits.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(Self(digits))
    }

    /// Formats a trace's number.
    pub fn of_number(trace: u128) -> Self {
        Self(hex(trace))
    }

    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Generates unique ids.
#[derive(Debug)]
pub struct Ids {
    seeds: [u64; 2],
    next: AtomicU64,
}

/// A generated id: 128 bits for the trace, 64 for the span, none of them zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewContext {
    trace: u128,
    span: u64,
}

impl Ids {
    /// Creates a generator that depends only on the seeds. Different seeds give different ids.
    pub fn new(seeds: [u64; 2]) -> Self {
        Self {
            seeds,
            next: AtomicU64::new(0),
        }
    }

    /// Creates a generator with random seeds.
    pub fn of_this_process() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // The standard library takes its hash keys from the operating system.
        let random = RandomState::new();
        Self::new([random.hash_one(0_u64), random.hash_one(1_u64)])
    }

    /// Returns the next id.
    #[must_use]
    pub fn next(&self) -> NewContext {
        let number = self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let part = |seed: u64| xxh3_64_with_seed(&number, seed) | 1;
        let [high, low] = self.seeds.map(part);
        NewContext {
            trace: u128::from(high) << 64 | u128::from(low),
            span: high.rotate_left(32) ^ low | 1,
        }
    }
}

/// Trace context of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: u128,
    /// The client's span, if given.
    pub parent: Option<u64>,
    /// The router's span of the request.
    pub span: u64,
    /// Whether the client sampled the trace.
    pub asked: bool,
    /// Whether the trace is marked as sampled for workers.
    pub sampled: bool,
}

impl Context {
    /// Context without a trace.
    pub const NONE: Self = Self {
        trace: 0,
        parent: None,
        span: 0,
        asked: false,
        sampled: false,
    };

    /// Returns the `traceparent` for children of one of this request's spans.
    pub fn parent_of(&self, span: u64) -> HeaderValue {
        parent(self.trace, span, self.sampled)
    }

    fn of(parent: &[u8], made: NewContext) -> Option<Self> {
        let text = std::str::from_utf8(parent.get(..55)?).ok()?;
        let flags = u8::from_str_radix(&text[53..55], 16).ok()?;
        Some(Self {
            trace: u128::from_str_radix(&text[3..35], 16).ok()?,
            parent: Some(u64::from_str_radix(&text[36..52], 16).ok()?),
            span: made.span,
            asked: flags & 1 != 0,
            sampled: flags & 1 != 0,
        })
    }
}

impl NewContext {
    /// Returns the trace as 32 hexadecimal digits.
    pub fn hex(self) -> HeaderValue {
        value(&hex(self.trace))
    }

    fn parent(self) -> HeaderValue {
        parent(self.trace, self.span, false)
    }
}

fn parent(trace: u128, span: u64, is_sampled: bool) -> HeaderValue {
    let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
    text[3..35].copy_from_slice(&hex(trace));
    text[36..52].copy_from_slice(&hex_of_half(span));
    text[54] += u8::from(is_sampled);
    value(&text)
}

fn hex(number: u128) -> [u8; 32] {
    let mut text = [0; 32];
    let (high, low) = text.split_at_mut(16);
    high.copy_from_slice(&hex_of_half((number >> 64) as u64));
    low.copy_from_slice(&hex_of_half(number as u64));
    text
}

/// Formats a number as 16 hexadecimal digits without a loop over them: spreads its half bytes over 16 bytes, then
/// converts all of these at once.
pub fn hex_of_half(number: u64) -> [u8; 16] {
    const EACH: u128 = u128::MAX / 0xff;
    let mut halves = u128::from(number);
    for (shift, mask) in [
        (32, u128::MAX / 0xffff_ffff_ffff_ffff * 0xffff_ffff),
        (16, u128::MAX / 0xffff_ffff * 0xffff),
        (8, u128::MAX / 0xffff * 0xff),
        (4, EACH * 0xf),
    ] {
        halves = (halves | halves << shift) & mask;
    }
    let is_letter = ((halves + EACH * 6) >> 4) & EACH;
    (halves + EACH * u128::from(b'0') + is_letter * u128::from(b'a' - b'9' - 1)).to_be_bytes()
}

fn value(text: &[u8]) -> HeaderValue {
    // Digits are always a valid value.
    HeaderValue::from_bytes(text).unwrap_or(HeaderValue::from_static("0"))
}

/// Keeps the client's trace context in a request's head if it is valid, or inserts the generated one.
pub fn settle(headers: &mut HeaderMap, made: NewContext) -> Context {
    let mut given = headers.get_all(&PARENT).iter();
    if let (Some(parent), None) = (given.next(), given.next())
        && is_valid(parent.as_bytes())
        && let Some(context) = Context::of(parent.as_bytes(), made)
    {
        return context;
    }
    // `tracestate` has no meaning without its parent.
    headers.remove(&STATE);
    headers.insert(PARENT, made.parent());
    Context {
        trace: made.trace,
        span: made.span,
        ..Context::NONE
    }
}

/// Validates a `traceparent`: lower case, no id all zero. Versions above 00 may have more fields.
fn is_valid(parent: &[u8]) -> bool {
    let Some((head, rest)) = parent.split_at_checked(55) else {
        return false;
    };
    let version = &head[..2];
    let dashes = [2, 35, 52].iter().all(|at| head[*at] == b'-');
    let hex = |range: std::ops::Range<usize>| {
        head[range]
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let zero = |range: std::ops::Range<usize>| head[range].iter().all(|byte| *byte == b'0');
    let ends = rest.is_empty() || (version != b"00" && rest[0] == b'-');
    dashes
        && hex(0..2)
        && hex(3..35)
        && hex(36..52)
        && hex(53..55)
        && version != b"ff"
        && !zero(3..35)
        && !zero(36..52)
        && ends
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn settled(parents: &[&str]) -> (HeaderValue, bool) {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(PARENT, HeaderValue::from_str(parent).unwrap());
        }
        headers.insert(STATE, HeaderValue::from_static("a=b"));
        settle(&mut headers, Ids::new([1, 2]).next());
        assert_eq!(headers.get_all(PARENT).iter().count(), 1);
        (headers[PARENT].clone(), headers.contains_key(STATE))
    }

    #[test]
    fn a_valid_context_is_continued_with_its_state() {
        for parent in [
            GOOD,
            &GOOD.replace("-01", "-00"),
            &GOOD.replacen("00", "cc", 1),
            &(GOOD.replacen("00", "01", 1) + "-more"),
        ] {
            assert_eq!(settled(&[parent]), (HeaderValue::from_str(parent).unwrap(), true));
        }
    }

    #[test]
    fn an_invalid_one_is_replaced_and_its_state_dropped() {
        let zero_trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        for parents in [
            &[][..],
            &[""],
            &[GOOD, GOOD],
            &[zero_trace],
            &[zero_span],
            &[&GOOD.to_uppercase()],
            &[&GOOD[..54]],
            &[&(GOOD.to_owned() + "-more")],
            &[&(GOOD.replacen("00", "01", 1) + "more")],
            &[&GOOD.replacen("00", "ff", 1)],
            &[&GOOD.replace('-', "_")],
        ] {
            let (parent, has_state) = settled(parents);
            assert!(is_valid(parent.as_bytes()) && parent != GOOD, "{parents:?}");
            assert!(
                parent.as_bytes().ends_with(b"-00"),
                "nobody asked for a recording"
            );
            assert!(!has_state);
        }
    }

    #[test]
    fn the_context_is_what_the_client_said_and_goes_on_with_another_parent() {
        let mut headers = HeaderMap::new();
        headers.insert(PARENT, HeaderValue::from_static(GOOD));
        let made = Ids::new([1, 2]).next();
        let context = settle(&mut headers, made);
        assert_eq!(context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(
            (context.parent, context.span),
            (Some(0x00f0_67aa_0ba9_02b7), made.span)
        );
        assert!(context.asked && context.sampled);
        let below = context.parent_of(7);
        assert_eq!(below, "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01");
        assert!(is_valid(below.as_bytes()));
        let begun = settle(&mut HeaderMap::new(), made);
        assert_eq!(
            (begun.trace, begun.parent, begun.asked),
            (made.trace, None, false)
        );
    }

    proptest::proptest! {
        #[test]
        fn digits_are_those_of_the_standard_library(number: u128) {
            let expected = format!("{number:032x}");
            proptest::prop_assert_eq!(hex(number), expected.as_bytes());
            let id = TraceId::of_number(number);
            proptest::prop_assert_eq!(id.as_str(), expected);
        }
    }

    #[test]
    fn names_differ_and_depend_on_the_seeds() {
        let (ids, same, other) = (Ids::new([1, 2]), Ids::new([1, 2]), Ids::new([1, 3]));
        let (first, second) = (ids.next(), ids.next());
        assert_ne!(first, second);
        assert_eq!(first, same.next());
        assert_ne!(first, other.next());
        assert_eq!(first.hex().len(), 32);
    }
}
