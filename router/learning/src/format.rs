//! File format of snapshots: magic, version, time and their checksum, then sections. Numbers are little-endian.
//!
//! ```text
//! section = kind (4 bytes) · length (8 bytes) · contents · checksum of all of these (8 bytes)
//! ```
//!
//! A damaged section, and one of an unknown kind, is left out and named; the others are read. The decisions of
//! operators and the small sections come first, so that the beginning of a file suffices before requests are served.
//!
//! No memory is allocated on the basis of a length alone, and no number is used as an index before it is checked.

mod read;

use policy::cache::Entry;
use policy::estimate::{Class as TurnClass, Finish, Stage};
use policy::tail::{Outcome, Then};
use xxhash_rust::xxh3::xxh3_64;

use self::read::SnapshotReader;
use crate::feedback::KeptConversation;

const MAGIC: &[u8; 8] = b"tailrout";
/// Increased whenever an older reader would misread the file, or when its keys name other prompts.
const VERSION: u32 = 8;
/// The version before sections. Its files have caches, models and outcomes only.
const UNDIVIDED: u32 = 7;
/// Length of magic, version, time and checksum.
const HEAD: usize = 28;
/// Length of a section's kind and length.
const SECTION_HEAD: usize = 12;
/// Number of parts that are named before the rest of a file is given up.
const MOST_NAMED: usize = 16;
/// Largest number of bytes of a section that is a document.
pub const MAX_DOCUMENT_BYTES: usize = 16 << 20;
/// Number of bytes of a file within which its documents end.
pub const EARLY_BYTES: usize = HEAD + 3 * (MAX_DOCUMENT_BYTES + SECTION_HEAD + 8);
const NONE: u32 = u32::MAX;
/// Sequel of a response: the next turn, or silence of a conversation without a name or with one (`NAMED`).
const NEXT: u8 = 0;
const SILENT: u8 = 1;
const NAMED: u8 = 2;

/// Contents of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Time at which the snapshot was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Decisions of operators: JSON, empty for none.
    pub decisions: Vec<u8>,
    /// The audit log: JSON, empty for none.
    pub audit: Vec<u8>,
    /// Costs and habits: JSON, empty for none.
    pub learned: Vec<u8>,
    /// Each model's name, tokens per byte and template gap.
    pub models: Vec<(String, f64, u64)>,
    /// Responses and what followed them, the oldest first.
    pub outcomes: Vec<Outcome>,
    /// Conversations, the least recently used first.
    pub conversations: Vec<KeptConversation>,
    /// Each worker's name and believed cache contents.
    pub workers: Vec<(String, Vec<Entry>)>,
    /// Positions in tokens of messages' ends, by text key, the least recently used first.
    pub places: Vec<(u64, u64, PositionKind)>,
    /// Each conversation's last worker, as an index into `workers`; the least recently used first.
    pub last_workers: Vec<(u64, u32)>,
    /// Each conversation's key by the key that its next prompt repeats; the least recently used first.
    pub prompts: Vec<(u64, u64)>,
}

/// The state of a message end's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionKind {
    /// A worker counted the tokens.
    Counted,
    /// A worker counted the tokens at the end of a conversation.
    Tip,
    /// The tokens are estimated by proportion.
    Guessed,
}

/// A part of a file that is read or left out as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Decisions of operators.
    Decisions = 1,
    Audit = 2,
    /// Costs and habits.
    Learned = 3,
    /// Tokens per byte, by model.
    Models = 4,
    /// Responses and what followed them.
    Outcomes = 5,
    Conversations = 6,
    /// Cached prefixes, and the last workers of conversations.
    Caches = 7,
}

impl Section {
    const ALL: [Self; 7] = [
        Self::Decisions,
        Self::Audit,
        Self::Learned,
        Self::Models,
        Self::Outcomes,
        Self::Conversations,
        Self::Caches,
    ];

    fn of(kind: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|section| *section as u32 == kind)
    }

    fn is_document(self) -> bool {
        matches!(self, Self::Decisions | Self::Audit | Self::Learned)
    }

    /// Returns the name in the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Audit => "audit log",
            Self::Learned => "costs and habits",
            Self::Models => "models",
            Self::Outcomes => "returns",
            Self::Conversations => "conversations",
            Self::Caches => "caches",
        }
    }
}

/// The reason why a file is not read.
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

/// A snapshot as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// The parts that were read. Parts that cannot be read are empty.
    pub contents: Contents,
    /// Names of the parts that cannot be read, for the log.
    pub left_out: Vec<String>,
}

/// Encodes a snapshot. A document that is too long is left out, because its reader would refuse it.
pub fn encode(contents: &Contents) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    word(&mut out, contents.taken_ms);
    sum_from(&mut out, 0);
    for kind in Section::ALL {
        let document = match kind {
            Section::Decisions => &contents.decisions,
            Section::Audit => &contents.audit,
            Section::Learned => &contents.learned,
            _ => {
                section(&mut out, kind, |out| part(out, kind, contents));
                continue;
            }
        };
        if !document.is_empty() && document.len() <= MAX_DOCUMENT_BYTES {
            section(&mut out, kind, |out| out.extend_from_slice(document));
        }
    }
    out
}

/// Decodes a snapshot. Fails if the bytes are not one, or are one of another version, or their head is damaged.
pub fn decode(bytes: &[u8]) -> Result<Decoded, FormatError> {
    let (version, rest) = version_of(bytes)?;
    if version == UNDIVIDED {
        let contents = undivided(bytes, rest).ok_or(FormatError::Damaged)?;
        return Ok(Decoded {
            contents,
            ..Decoded::default()
        });
    }
    Ok(sections(head_of(bytes)?, false))
}

/// Decodes the documents of a snapshot from its first [`EARLY_BYTES`]. Fails like [`decode`].
pub fn decode_early(bytes: &[u8]) -> Result<Decoded, FormatError> {
    match version_of(bytes)? {
        (UNDIVIDED, _) => Ok(Decoded::default()),
        _ => Ok(sections(head_of(bytes)?, true)),
    }
}

fn version_of(bytes: &[u8]) -> Result<(u32, &[u8]), FormatError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(FormatError::Foreign)?;
    let (version, rest) = rest.split_first_chunk().ok_or(FormatError::Damaged)?;
    match u32::from_le_bytes(*version) {
        version @ (VERSION | UNDIVIDED) => Ok((version, rest)),
        version => Err(FormatError::Version(version)),
    }
}

/// Returns the time at which a snapshot was taken, and its sections.
fn head_of(bytes: &[u8]) -> Result<(u64, &[u8]), FormatError> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(FormatError::Damaged)?;
    let mut reader = SnapshotReader(head.get(MAGIC.len() + 4..).unwrap_or_default());
    let (taken_ms, sum) = reader.pair().ok_or(FormatError::Damaged)?;
    match xxh3_64(&head[..HEAD - 8]) == sum {
        true => Ok((taken_ms, rest)),
        false => Err(FormatError::Damaged),
    }
}

fn undivided(bytes: &[u8], rest: &[u8]) -> Option<Contents> {
    let (summed, sum) = bytes.split_last_chunk()?;
    let is_whole = xxh3_64(summed) == u64::from_le_bytes(*sum);
    let contents = rest.get(..rest.len().checked_sub(8)?)?;
    SnapshotReader(contents).undivided().filter(|_| is_whole)
}

/// Reads the sections; if `early`, only the documents.
fn sections((taken_ms, mut rest): (u64, &[u8]), early: bool) -> Decoded {
    let mut decoded = Decoded::default();
    decoded.contents.taken_ms = taken_ms;
    while !rest.is_empty() && decoded.left_out.len() < MOST_NAMED {
        let kind = rest.first_chunk().map(|kind| u32::from_le_bytes(*kind));
        let known = kind.and_then(Section::of);
        if early && known.is_some_and(|section| !section.is_document()) {
            break;
        }
        let Some((section, after)) = split(rest) else {
            let from = known.map_or("an unknown part", Section::as_str);
            decoded
                .left_out
                .push(format!("{from} and what follows (cut off or damaged)"));
            break;
        };
        rest = after;
        let (Some(known), Some((contents, sum))) = (known, section.split_last_chunk()) else {
            decoded
                .left_out
                .push(format!("part {} (of another version)", kind.unwrap_or_default()));
            continue;
        };
        let is_whole = xxh3_64(contents) == u64::from_le_bytes(*sum);
        let contents = contents.get(SECTION_HEAD..).unwrap_or_default();
        if !is_whole || decoded.contents.read(known, contents).is_none() {
            decoded.left_out.push(format!("{} (damaged)", known.as_str()));
        }
    }
    decoded
}

/// Splits off a section with its head and checksum.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = bytes
        .get(4..SECTION_HEAD)?
        .try_into()
        .ok()
        .map(u64::from_le_bytes)?;
    let whole = usize::try_from(length).ok()?.checked_add(SECTION_HEAD + 8)?;
    bytes.split_at_checked(whole)
}

fn section(out: &mut Vec<u8>, kind: Section, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&(kind as u32).to_le_bytes());
    word(out, 0);
    write(out);
    let length = (out.len() - start - SECTION_HEAD) as u64;
    out[start + 4..start + SECTION_HEAD].copy_from_slice(&length.to_le_bytes());
    sum_from(out, start);
}

fn sum_from(out: &mut Vec<u8>, start: usize) {
    let sum = xxh3_64(&out[start..]);
    word(out, sum);
}

fn part(out: &mut Vec<u8>, kind: Section, contents: &Contents) {
    match kind {
        Section::Models => models(out, contents),
        Section::Outcomes => list(out, &contents.outcomes, outcome),
        Section::Conversations => list(out, &contents.conversations, conversation),
        Section::Caches => {
            caches(out, contents);
            places(out, contents);
        }
        Section::Decisions | Section::Audit | Section::Learned => {}
    }
}

fn models(out: &mut Vec<u8>, contents: &Contents) {
    list(out, &contents.models, |out, (name, ratio, gap)| {
        text(out, name);
        word(out, ratio.to_bits());
        word(out, *gap);
    });
}

fn caches(out: &mut Vec<u8>, contents: &Contents) {
    list(out, &contents.workers, |out, (name, entries)| {
        text(out, name);
        list(out, entries, |out, entry| {
            word(out, entry.piece.hash.0);
            out.extend_from_slice(&entry.piece.tokens.to_le_bytes());
            out.extend_from_slice(&entry.parent.unwrap_or(NONE).to_le_bytes());
        });
    });
}

fn places(out: &mut Vec<u8>, contents: &Contents) {
    list(out, &contents.places, |out, &(key, tokens, kind)| {
        pair(out, key, tokens);
        out.push(kind as u8);
    });
    list(out, &contents.last_workers, |out, &(session, worker)| {
        pair(out, session, worker.into());
    });
    list(out, &contents.prompts, |out, &(one, other)| {
        pair(out, one, other);
    });
}

fn conversation(out: &mut Vec<u8>, talk: &KeptConversation) {
    pair(out, talk.key, talk.length.0);
    out.extend_from_slice(&talk.turns.to_le_bytes());
    out.push(class_byte(talk.class));
    out.push(talk.is_over.into());
    pair(out, talk.heard.0.to_bits(), talk.ended.0.to_bits());
}

/// Packs a class without its key: two bits for the stage, one for tools, three for the reason of the response's end.
fn class_byte(class: TurnClass) -> u8 {
    let stage = Stage::ALL
        .iter()
        .position(|stage| *stage == class.stage)
        .unwrap_or(0);
    let finish = FINISHES
        .iter()
        .position(|finish| *finish == class.finish)
        .unwrap_or(0);
    stage as u8 | u8::from(class.tools) << 2 | (finish as u8) << 3
}

const FINISHES: [Option<Finish>; 5] = [
    None,
    Some(Finish::Stop),
    Some(Finish::Length),
    Some(Finish::ToolCalls),
    Some(Finish::Other),
];

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

#[cfg(test)]
mod tests;
