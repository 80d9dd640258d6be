//! Positions of messages' ends in tokens. A prompt's end is a key of every later turn, so a conversation has an exact
//! position at each turn ([`TokenOffset`]).

use parking_lot::RwLock;
use policy::fingerprint::{Chain, MediaPart};
use policy::ids::PrefixHash;
use policy::set_associative::SetAssociativeMap;

use super::CountedTurn;
use super::models::Ratio;
use super::scale::Scale;
use super::token_offset::{Packed, TokenOffset};

/// Largest number of text keys with a known position. A turn adds two or three.
const PLACES: usize = 200_000;

#[derive(Debug)]
struct TokenOffsetTable(SetAssociativeMap);

impl TokenOffsetTable {
    /// Prefetches the entries of a prompt's messages.
    fn warm(&self, chain: &Chain) {
        self.0.warm(chain.message_ends().map(|(key, _)| key.0));
    }

    fn get(&self, key: PrefixHash) -> Option<TokenOffset> {
        self.0.get(key.0).map(|packed| Packed(packed).offset())
    }

    fn put(&mut self, key: PrefixHash, place: TokenOffset) {
        self.0.put(key.0, Packed::from(place).0);
    }

    fn update(&mut self, key: PrefixHash, next: impl FnOnce(Option<TokenOffset>) -> TokenOffset) {
        self.0.update(key.0, |known| {
            Packed::from(next(known.map(|packed| Packed(packed).offset()))).0
        });
    }
}

#[derive(Debug)]
pub(super) struct TokenOffsets(RwLock<TokenOffsetTable>);

impl Default for TokenOffsets {
    fn default() -> Self {
        Self(RwLock::new(TokenOffsetTable(SetAssociativeMap::new(PLACES))))
    }
}

impl TokenOffsets {
    pub(super) fn scale(&self, chain: &Chain, media: &[MediaPart], ratio: Ratio) -> Scale {
        let places = self.0.read();
        places.warm(chain);
        Scale::of(chain, media, ratio, |key| places.get(key))
    }

    pub(super) fn scale_into(&self, chain: &Chain, media: &[MediaPart], ratio: Ratio, scale: &mut Scale) {
        let places = self.0.read();
        places.warm(chain);
        scale.read(chain, media, ratio, |key| places.get(key));
    }

    /// Records the positions of a counted turn. Returns the scale of its prompt.
    pub(super) fn counted(&self, turn: &CountedTurn<'_>, ratio: Ratio) -> Scale {
        let mut places = self.0.write();
        places.warm(turn.prompt);
        if let Some(last) = turn.prompt.last() {
            places.put(last, TokenOffset::Counted(turn.prompt_tokens));
        }
        let scale = Scale::of(turn.prompt, turn.media, ratio, |key| places.get(key));
        for (key, end) in turn.prompt.message_ends() {
            places.update(key, |known| match known {
                None => TokenOffset::Guessed(scale.tokens(end)),
                Some(TokenOffset::Tip { total, ended }) => TokenOffset::Counted(total + ratio.after(ended)),
                Some(place) => place,
            });
        }
        if let Some(last) = turn.reply.and_then(|(_, reply)| reply.last()) {
            let total = turn.prompt_tokens + turn.reply_tokens;
            // Another branch may have continued the same reply.
            if !matches!(places.get(last), Some(TokenOffset::Counted(_))) {
                let ended = turn.ended;
                places.put(last, TokenOffset::Tip { total, ended });
            }
        }
        scale
    }

    /// Moves a message's end into the block after `cached` tokens. Returns the number of tokens by which a counted
    /// position was exceeded. Positions that were not counted are set only if `sure`.
    pub(super) fn correct(&self, key: PrefixHash, cached: u64, block: u64, sure: bool) -> u64 {
        let mut places = self.0.write();
        let (known, counted) = match places.get(key) {
            Some(TokenOffset::Counted(known) | TokenOffset::Tip { total: known, .. }) => (known, true),
            Some(TokenOffset::Guessed(known)) => (known, false),
            None => (cached, false),
        };
        if counted || sure {
            places.put(key, TokenOffset::Counted(known.clamp(cached, cached + block - 1)));
        }
        if counted { cached.saturating_sub(known) } else { 0 }
    }

    /// Moves a message's end, estimated at `guess`, into the block after `cached` tokens, unless it was counted.
    pub(super) fn refine(&self, key: PrefixHash, guess: u64, cached: u64, block: u64) {
        let mut places = self.0.write();
        if !matches!(
            places.get(key),
            Some(TokenOffset::Counted(_) | TokenOffset::Tip { .. })
        ) {
            places.put(key, TokenOffset::Guessed(guess.clamp(cached, cached + block - 1)));
        }
    }

    /// Returns whether any text after the first `edge` keys is known.
    pub(super) fn knows_past(&self, chain: &Chain, edge: usize) -> bool {
        let places = self.0.read();
        let past = chain.hashes().get(edge..).unwrap_or_default();
        past.iter().any(|key| places.0.contains(key.0))
    }

    /// Returns all positions in the order in which they are restored, the least recently used first.
    pub(super) fn all(&self) -> Vec<(PrefixHash, TokenOffset)> {
        let places = self.0.read();
        places
            .0
            .iter()
            .map(|(key, packed)| (PrefixHash(key), Packed(packed).offset()))
            .collect()
    }

    /// Restores a position, unless one is known.
    pub(super) fn restore(&self, key: PrefixHash, place: TokenOffset) {
        let mut places = self.0.write();
        if !places.0.contains(key.0) {
            places.put(key, place);
        }
    }
}
