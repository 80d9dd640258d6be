//! Where in tokens messages end.
//!
//! Workers count the prompts that they serve, and a prompt's end is a key of every later turn. So a conversation's text
//! has an exact place at each of its turns, whatever tokens it is made of. Three things are known of a message's end:
//!
//! - it was *counted*: a prompt ended there, or a reply that was gone on from;
//! - it is the *tip* of a conversation: the reply ended there, and nobody has gone on. Then the engine holds one token
//!   less (the last one's own keys and values are never computed) and nothing of what a template puts after a reply;
//! - it was *guessed*, by proportion within a prompt that was counted: the end of a system prompt that conversations
//!   share. A report that contradicts it moves it.

use parking_lot::RwLock;
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::ways::Ways;

use super::Counted;
use super::models::Ratio;
use super::scale::Scale;

/// Text keys whose end is known in tokens: two or three for each turn.
const PLACES: usize = 200_000;

/// What is known of a message's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A worker counted so many tokens up to where the next message begins.
    Counted(u64),
    /// A worker counted so many tokens, and nothing follows yet.
    Tip {
        /// So many.
        total: u64,
        /// Whether the last one is an end mark, which is not text.
        ended: bool,
    },
    /// It should be here.
    Guessed(u64),
}

/// A [`Place`] in one word: each prompt asks for dozens, of a table that fits no processor's cache.
#[derive(Clone, Copy, Debug)]
struct Packed(u64);

impl Packed {
    const KINDS: u32 = 2;
    const COUNTED: u64 = 0;
    const GUESSED: u64 = 1;
    const TIP: u64 = 2;
    const ENDED_TIP: u64 = 3;

    fn place(self) -> Place {
        let tokens = self.0 >> Self::KINDS;
        match self.0 & ((1 << Self::KINDS) - 1) {
            Self::COUNTED => Place::Counted(tokens),
            Self::GUESSED => Place::Guessed(tokens),
            kind => Place::Tip {
                total: tokens,
                ended: kind == Self::ENDED_TIP,
            },
        }
    }
}

impl From<Place> for Packed {
    fn from(place: Place) -> Self {
        let (tokens, kind) = match place {
            Place::Counted(tokens) => (tokens, Self::COUNTED),
            Place::Guessed(tokens) => (tokens, Self::GUESSED),
            Place::Tip { total, ended: false } => (total, Self::TIP),
            Place::Tip { total, ended: true } => (total, Self::ENDED_TIP),
        };
        // No prompt has so many tokens, whatever a worker says.
        Self(tokens.min(u64::MAX >> Self::KINDS) << Self::KINDS | kind)
    }
}

/// The message ends used last.
#[derive(Debug)]
struct Table(Ways);

impl Table {
    /// About to be asked for a prompt's messages.
    fn warm(&self, chain: &Chain) {
        self.0.warm(chain.message_ends().map(|(key, _)| key.0));
    }

    fn get(&self, key: PrefixHash) -> Option<Place> {
        self.0.get(key.0).map(|packed| Packed(packed).place())
    }

    fn put(&mut self, key: PrefixHash, place: Place) {
        self.0.put(key.0, Packed::from(place).0);
    }

    /// The place of a key that is used becomes what `next` makes of it.
    fn update(&mut self, key: PrefixHash, next: impl FnOnce(Option<Place>) -> Place) {
        self.0.update(key.0, |known| {
            Packed::from(next(known.map(|packed| Packed(packed).place()))).0
        });
    }
}

/// Where the ends of messages are.
#[derive(Debug)]
pub(super) struct Places(RwLock<Table>);

impl Default for Places {
    fn default() -> Self {
        Self(RwLock::new(Table(Ways::new(PLACES))))
    }
}

impl Places {
    /// From bytes of a prompt to tokens.
    pub(super) fn scale(&self, chain: &Chain, ratio: Ratio) -> Scale {
        let places = self.0.read();
        places.warm(chain);
        Scale::of(chain, ratio, |key| places.get(key))
    }

    /// The same in place of a scale that was used before.
    pub(super) fn scale_into(&self, chain: &Chain, ratio: Ratio, scale: &mut Scale) {
        let places = self.0.read();
        places.warm(chain);
        scale.read(chain, ratio, |key| places.get(key));
    }

    /// A worker counted a turn. Returns where its prompt's keys are now.
    pub(super) fn counted(&self, turn: &Counted<'_>, ratio: Ratio) -> Scale {
        let mut places = self.0.write();
        places.warm(turn.prompt);
        if let Some(last) = turn.prompt.last() {
            places.put(last, Place::Counted(turn.prompt_tokens));
        }
        let scale = Scale::of(turn.prompt, ratio, |key| places.get(key));
        for (key, end) in turn.prompt.message_ends() {
            places.update(key, |known| match known {
                None => Place::Guessed(scale.tokens(end)),
                Some(Place::Tip { total, ended }) => Place::Counted(total + ratio.after(ended)),
                Some(place) => place,
            });
        }
        if let Some(last) = turn.reply.and_then(|(_, reply)| reply.last()) {
            let total = turn.prompt_tokens + turn.reply_tokens;
            // Another branch may have gone on from the same reply.
            if !matches!(places.get(last), Some(Place::Counted(_))) {
                let ended = turn.ended;
                places.put(last, Place::Tip { total, ended });
            }
        }
        scale
    }

    /// A message's end lies within the block after `cached` tokens. Returns how many more tokens that is than were
    /// counted, if it was counted. Only who is `sure` may place an end that nobody counted.
    pub(super) fn correct(&self, key: PrefixHash, cached: u64, block: u64, sure: bool) -> u64 {
        let mut places = self.0.write();
        let (known, counted) = match places.get(key) {
            Some(Place::Counted(known) | Place::Tip { total: known, .. }) => (known, true),
            Some(Place::Guessed(known)) => (known, false),
            None => (cached, false),
        };
        if counted || sure {
            places.put(key, Place::Counted(known.clamp(cached, cached + block - 1)));
        }
        if counted { cached.saturating_sub(known) } else { 0 }
    }

    /// A message's end, believed to be at `guess`, lies within the block after `cached` tokens, unless it was counted.
    pub(super) fn refine(&self, key: PrefixHash, guess: u64, cached: u64, block: u64) {
        let mut places = self.0.write();
        if !matches!(places.get(key), Some(Place::Counted(_) | Place::Tip { .. })) {
            places.put(key, Place::Guessed(guess.clamp(cached, cached + block - 1)));
        }
    }

    /// Whether text that goes on after the first `edge` keys was seen before.
    pub(super) fn knows_past(&self, chain: &Chain, edge: usize) -> bool {
        let places = self.0.read();
        let past = chain.hashes().get(edge..).unwrap_or_default();
        past.iter().any(|key| places.0.contains(key.0))
    }

    /// All. What is taken up again in this order is forgotten in the same order.
    pub(super) fn all(&self) -> Vec<(PrefixHash, Place)> {
        let places = self.0.read();
        places
            .0
            .iter()
            .map(|(key, packed)| (PrefixHash(key), Packed(packed).place()))
            .collect()
    }

    /// Takes up a place, unless one is known.
    pub(super) fn restore(&self, key: PrefixHash, place: Place) {
        let mut places = self.0.write();
        if !places.0.contains(key.0) {
            places.put(key, place);
        }
    }
}
