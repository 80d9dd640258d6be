//! File format: magic, version, time, length, contents, and a checksum over all of it. Numbers are little-endian.
//!
//! No memory is allocated on the basis of a length alone, and no number is used as an index before it is checked.

use policy::cache::{Entry, Piece};
use policy::ids::PrefixHash;
use policy::tail::{Class, Outcome, Then};
use policy::units::Millis;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"tailrout";
/// Increased whenever an older reader would misread the file, or when its keys name other prompts.
const VERSION: u32 = 7;
const NONE: u32 = u32::MAX;
/// What followed a response: the next turn, or silence of a conversation without or with a name.
const NEXT: u8 = 0;
const SILENT: u8 = 1;
const NAMED: u8 = 2;

/// Contents of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Time at which it was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Each worker's name and believed cache contents.
    pub workers: Vec<(String, Vec<Entry>)>,
    /// Each model's name, tokens per byte and template gap.
    pub models: Vec<(String, f64, u64)>,
    /// Positions in tokens of messages' ends, by text key, the least recently used first.
    pub places: Vec<(u64, u64, Kind)>,
    /// Each conversation's last worker, as an index into `workers`; the least recently used first.
    pub last_workers: Vec<(u64, u32)>,
    /// Each conversation by the last key of its last prompt; the least recently used first.
    pub prompts: Vec<(u64, u64)>,
    /// Responses and what followed them, the oldest first.
    pub outcomes: Vec<Outcome>,
}

/// State of a message end's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counted by a worker.
    Counted,
    /// Counted by a worker at the end of a conversation.
    Tip,
    /// Estimated by proportion.
    Guessed,
}

/// Reason why a file is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file is not a snapshot.
    #[error("not a snapshot")]
    Foreign,
    /// Another version of the router wrote it.
    #[error("version {0} of the format, expected {VERSION}")]
    Version(u32),
    /// The contents do not match their checksum or structure.
    #[error("damaged")]
    Damaged,
}

/// Encodes a snapshot.
pub fn encode(contents: &Contents) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    word(&mut out, contents.taken_ms);
    list(&mut out, &contents.workers, |out, (name, entries)| {
        text(out, name);
        list(out, entries, |out, entry| {
            word(out, entry.piece.hash.0);
            out.extend_from_slice(&entry.piece.tokens.to_le_bytes());
            out.extend_from_slice(&entry.parent.unwrap_or(NONE).to_le_bytes());
        });
    });
    list(&mut out, &contents.models, |out, (name, ratio, gap)| {
        text(out, name);
        word(out, ratio.to_bits());
        word(out, *gap);
    });
    list(&mut out, &contents.places, |out, &(key, tokens, kind)| {
        pair(out, key, tokens);
        out.push(kind as u8);
    });
    list(&mut out, &contents.last_workers, |out, &(session, worker)| {
        pair(out, session, worker.into());
    });
    list(&mut out, &contents.prompts, |out, &(one, other)| {
        pair(out, one, other)
    });
    list(&mut out, &contents.outcomes, outcome);
    let sum = xxh3_64(&out);
    word(&mut out, sum);
    out
}

/// Decodes a snapshot. Fails if the bytes were not written by [`encode`].
pub fn decode(bytes: &[u8]) -> Result<Contents, FormatError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(FormatError::Foreign)?;
    let (version, _) = rest.split_first_chunk().ok_or(FormatError::Damaged)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    let (summed, sum) = bytes.split_last_chunk().ok_or(FormatError::Damaged)?;
    if xxh3_64(summed) != u64::from_le_bytes(*sum) {
        return Err(FormatError::Damaged);
    }
    let mut reader = Reader(summed.get(MAGIC.len() + 4..).unwrap_or_default());
    let contents = reader.contents().ok_or(FormatError::Damaged)?;
    Ok(contents)
}

fn word(out: &mut Vec<u8>, word: u64) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn pair(out: &mut Vec<u8>, one: u64, other: u64) {
    word(out, one);
    word(out, other);
}

fn outcome(out: &mut Vec<u8>, outcome: &Outcome) {
    let (flag, then) = match outcome.then {
        Then::Next(gap) => (NEXT, gap.0.to_bits()),
        Then::Silence(None) => (SILENT, 0),
        Then::Silence(Some(conversation)) => (NAMED, conversation),
    };
    out.push(flag);
    out.extend_from_slice(&(outcome.class.index() as u16).to_le_bytes());
    pair(out, outcome.age.0.to_bits(), then);
}

fn text(out: &mut Vec<u8>, text: &str) {
    word(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn list<T>(out: &mut Vec<u8>, items: &[T], mut each: impl FnMut(&mut Vec<u8>, &T)) {
    word(out, items.len() as u64);
    items.iter().for_each(|item| each(out, item));
}

/// Reads values from the front; `None` where they are missing or invalid.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn contents(&mut self) -> Option<Contents> {
        let contents = Contents {
            taken_ms: self.word()?,
            workers: self.list(|reader| Some((reader.text()?, reader.entries()?)))?,
            models: self
                .list(|reader| Some((reader.text()?, f64::from_bits(reader.word()?), reader.word()?)))?,
            places: self.list(Self::place)?,
            last_workers: self.list(|reader| {
                let (session, worker) = reader.pair()?;
                Some((session, u32::try_from(worker).ok()?))
            })?,
            prompts: self.list(Self::pair)?,
            outcomes: self.list(Self::outcome)?,
        };
        self.0.is_empty().then_some(contents)
    }

    fn entries(&mut self) -> Option<Vec<Entry>> {
        self.list(|reader| {
            let hash = PrefixHash(reader.word()?);
            let (tokens, parent) = (reader.half()?, reader.half()?);
            Some(Entry {
                piece: Piece { hash, tokens },
                parent: (parent != NONE).then_some(parent),
            })
        })
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = usize::try_from(self.word()?).ok()?;
        // Bounded by the bytes left to read.
        let most = self.0.len() / size_of::<T>().max(8);
        let mut items = Vec::with_capacity(length.min(most));
        for _ in 0..length {
            items.push(each(self)?);
        }
        Some(items)
    }

    fn place(&mut self) -> Option<(u64, u64, Kind)> {
        let (key, tokens) = self.pair()?;
        let (&kind, rest) = self.0.split_first()?;
        self.0 = rest;
        let kinds = [Kind::Counted, Kind::Tip, Kind::Guessed];
        Some((key, tokens, *kinds.get(usize::from(kind))?))
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let (&[flag, low, high], rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        let class = Class::from_index(u16::from_le_bytes([low, high]).into())?;
        let age = self.time()?;
        let then = match flag {
            NEXT => Then::Next(self.time()?),
            SILENT => self.word().map(|_| Then::Silence(None))?,
            NAMED => Then::Silence(Some(self.word()?)),
            _ => return None,
        };
        Some(Outcome { class, age, then })
    }

    fn time(&mut self) -> Option<Millis> {
        let ms = f64::from_bits(self.word()?);
        (ms.is_finite() && ms >= 0.0).then_some(Millis(ms))
    }

    fn pair(&mut self) -> Option<(u64, u64)> {
        Some((self.word()?, self.word()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.word()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn half(&mut self) -> Option<u32> {
        let (half, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*half))
    }
}

#[cfg(test)]
mod tests {
    use policy::units::Tokens;
    use proptest::prelude::*;

    use super::*;

    fn contents() -> Contents {
        let entry = |hash, parent| Entry {
            piece: Piece {
                hash: PrefixHash(hash),
                tokens: 64,
            },
            parent,
        };
        Contents {
            taken_ms: 1_800_000_000_000,
            workers: vec![
                ("a:8000".to_owned(), vec![entry(3, Some(1)), entry(2, None)]),
                ("b".to_owned(), Vec::new()),
            ],
            models: vec![("llama".to_owned(), 0.25, 3)],
            places: vec![(1, 2, Kind::Tip), (3, 4, Kind::Guessed), (5, 6, Kind::Counted)],
            last_workers: vec![(7, 1)],
            prompts: vec![(9, 7)],
            outcomes: [
                Then::Next(Millis(1.5)),
                Then::Silence(None),
                Then::Silence(Some(7)),
            ]
            .map(|then| Outcome {
                class: Class::of(3, Tokens(100), true),
                age: Millis(2_000.0),
                then,
            })
            .to_vec(),
        }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(decode(&encode(&contents())), Ok(contents()));
    }

    #[test]
    fn another_byte_at_any_place_is_refused_and_so_is_any_cut() {
        let bytes = encode(&contents());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(decode(&longer), Err(FormatError::Damaged));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_even_if_the_checksum_holds(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(&VERSION.to_le_bytes());
            file.extend_from_slice(&bytes);
            let sum = xxh3_64(&file);
            file.extend_from_slice(&sum.to_le_bytes());
            let _ = decode(&file);
            let _ = decode(&bytes);
        }
    }
}
