//! Reads the parts of a snapshot.

use policy::cache::{Entry, Piece};
use policy::estimate::{Class as TurnClass, Stage};
use policy::ids::PrefixHash;
use policy::tail::{Class, Outcome, Then};
use policy::units::{Millis, Tokens};

use super::{Contents, FINISHES, MAX_DOCUMENT_BYTES, NAMED, NEXT, NONE, PositionKind, SILENT, Section};
use crate::feedback::KeptConversation;

impl Contents {
    /// Reads a section. Returns `None` and changes nothing if it is invalid.
    pub(super) fn read(&mut self, section: Section, bytes: &[u8]) -> Option<()> {
        let mut reader = SnapshotReader(bytes);
        let document = || (bytes.len() <= MAX_DOCUMENT_BYTES).then(|| bytes.to_vec());
        match section {
            Section::Decisions => self.decisions = document()?,
            Section::Audit => self.audit = document()?,
            Section::Learned => self.learned = document()?,
            Section::Models => self.models = reader.models().filter(|_| reader.0.is_empty())?,
            Section::Outcomes => {
                self.outcomes = reader
                    .list(SnapshotReader::outcome)
                    .filter(|_| reader.0.is_empty())?;
            }
            Section::Conversations => {
                let conversations = reader.list(SnapshotReader::conversation);
                self.conversations = conversations.filter(|_| reader.0.is_empty())?;
            }
            Section::Caches => {
                let workers = reader.workers()?;
                let places = reader.places().filter(|_| reader.0.is_empty())?;
                self.workers = workers;
                (self.places, self.last_workers, self.prompts) = places;
            }
        }
        Some(())
    }
}

type Places = (Vec<(u64, u64, PositionKind)>, Vec<(u64, u32)>, Vec<(u64, u64)>);

/// Reads values from the front. Returns `None` where they are missing or invalid.
pub(super) struct SnapshotReader<'a>(pub(super) &'a [u8]);

impl SnapshotReader<'_> {
    /// Reads a file without sections, after its version and without its checksum.
    pub(super) fn undivided(&mut self) -> Option<Contents> {
        let (taken_ms, workers, models) = (self.word()?, self.workers()?, self.models()?);
        let (places, last_workers, prompts) = self.places()?;
        let outcomes = self.list(Self::outcome)?;
        self.0.is_empty().then(|| Contents {
            taken_ms,
            workers,
            models,
            places,
            last_workers,
            prompts,
            outcomes,
            ..Contents::default()
        })
    }

    fn workers(&mut self) -> Option<Vec<(String, Vec<Entry>)>> {
        self.list(|reader| Some((reader.text()?, reader.entries()?)))
    }

    fn models(&mut self) -> Option<Vec<(String, f64, u64)>> {
        self.list(|reader| {
            let (name, ratio, gap) = (reader.text()?, f64::from_bits(reader.word()?), reader.word()?);
            (ratio.is_finite() && ratio > 0.0).then_some((name, ratio, gap))
        })
    }

    fn places(&mut self) -> Option<Places> {
        let places = self.list(Self::place)?;
        let last_workers = self.list(|reader| {
            let (session, worker) = reader.pair()?;
            Some((session, u32::try_from(worker).ok()?))
        })?;
        Some((places, last_workers, self.list(Self::pair)?))
    }

    fn conversation(&mut self) -> Option<KeptConversation> {
        let (key, length) = self.pair()?;
        let turns = self.half()?;
        let (&[class, is_over], rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        let class = TurnClass {
            stage: Stage::ALL[usize::from(class & 3)],
            tools: class & 4 != 0,
            key: None,
            finish: *FINISHES.get(usize::from(class >> 3))?,
        };
        Some(KeptConversation {
            key,
            turns,
            length: Tokens(length),
            class,
            heard: self.time()?,
            ended: self.time()?,
            is_over: is_over != 0,
        })
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

    fn place(&mut self) -> Option<(u64, u64, PositionKind)> {
        let (key, tokens) = self.pair()?;
        let (&kind, rest) = self.0.split_first()?;
        self.0 = rest;
        let kinds = [PositionKind::Counted, PositionKind::Tip, PositionKind::Guessed];
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

    pub(super) fn pair(&mut self) -> Option<(u64, u64)> {
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
