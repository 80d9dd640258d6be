//! Conversion of positions in a prompt's text to tokens. A model's ratio of tokens to bytes is an average, which is off
//! by a block within a few hundred tokens. Since the ends of messages have known positions (`token_offsets`), only text
//! between two of them, or after the last, is estimated. Media count by the tokens of their kind, not by their bytes.

use std::cell::Cell;

use policy::fingerprint::{Chain, MediaPart};
use policy::ids::PrefixHash;

use super::models::Ratio;
use super::plain_prompt_ends::Tail;
use super::token_offset::TokenOffset;

/// The known position of a message's end.
#[derive(Clone, Copy, Debug)]
struct Pin {
    bytes: u64,
    tokens: u64,
    /// Tokens that a worker holds when its match ends here.
    held: u64,
    counted: bool,
}

/// The text between two pins.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Index of the pin at the end of the text.
    after: usize,
    from: u64,
    until: u64,
    /// Tokens at the start of the text.
    at: u64,
    ratio: f64,
    /// Tokens of the media before the start of the text, if those within the text count apart from it.
    media: Option<u64>,
}

/// Conversion from bytes of one prompt to tokens.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Known positions, ascending in bytes and tokens.
    pins: Vec<Pin>,
    ratio: f64,
    /// Ends of the media in bytes, each with the tokens of all media up to there.
    media: Vec<(u64, u64)>,
    /// Whether the chain's ends are already tokens.
    exact: bool,
}

impl Default for Scale {
    fn default() -> Self {
        Self::exact()
    }
}

impl Scale {
    /// Returns the scale of a chain whose ends are tokens.
    pub fn exact() -> Self {
        Self {
            pins: Vec::new(),
            ratio: 1.0,
            media: Vec::new(),
            exact: true,
        }
    }

    /// Returns the scale of a chain with known positions for some keys.
    pub(super) fn of(
        chain: &Chain,
        media: &[MediaPart],
        ratio: Ratio,
        place: impl Fn(PrefixHash) -> Option<TokenOffset>,
    ) -> Self {
        let mut scale = Self::exact();
        scale.read(chain, media, ratio, place);
        scale
    }

    /// Reads the scale like [`Self::of`], reusing the memory of `self`.
    pub(super) fn read(
        &mut self,
        chain: &Chain,
        media: &[MediaPart],
        ratio: Ratio,
        place: impl Fn(PrefixHash) -> Option<TokenOffset>,
    ) {
        (self.ratio, self.exact) = (ratio.ratio, false);
        let mut total = 0;
        self.media.clear();
        self.media.extend(media.iter().map(|part| {
            total += ratio.media.of(part.medium).0;
            (part.end, total)
        }));
        let pins = &mut self.pins;
        pins.clear();
        for (key, bytes) in chain.message_ends() {
            let Some(place) = place(key) else { continue };
            let pin = match place {
                TokenOffset::Counted(tokens) => Pin {
                    bytes,
                    tokens,
                    held: tokens,
                    counted: true,
                },
                TokenOffset::Tip { total, ended } => Pin {
                    bytes,
                    tokens: total + ratio.after(ended),
                    held: total.saturating_sub(1),
                    counted: true,
                },
                TokenOffset::Guessed(tokens) => Pin {
                    bytes,
                    tokens,
                    held: tokens,
                    counted: false,
                },
            };
            // A counted position overrides guesses; a position that does not ascend contradicts an earlier one.
            if pin.counted {
                while pins
                    .last()
                    .is_some_and(|last| !last.counted && last.tokens >= pin.tokens)
                {
                    pins.pop();
                }
            }
            if pins.last().is_none_or(|last| pin.tokens > last.tokens) && pin.tokens > 0 {
                pins.push(pin);
            }
        }
    }

    pub(super) fn read_exact(&mut self) {
        self.pins.clear();
        self.media.clear();
        (self.ratio, self.exact) = (1.0, true);
    }

    /// Adds the end of the turn that the prompt continues from within a chunk.
    pub(super) fn go_on(&mut self, chain: &Chain, tail: &Tail) {
        let full = chain.span(tail.keys);
        self.pins
            .retain(|pin| pin.bytes > tail.bytes && pin.tokens > tail.tokens);
        let end = Pin {
            bytes: tail.bytes,
            tokens: tail.tokens,
            held: tail.tokens.saturating_sub(1),
            counted: true,
        };
        self.pins.insert(0, end);
        if tail.at > 0 && full > 0 && tail.at < tail.tokens && full < tail.bytes {
            let chunk = Pin {
                bytes: full,
                tokens: tail.at,
                held: tail.at,
                counted: true,
            };
            self.pins.insert(0, chunk);
        }
    }

    /// Returns the scale for text after the first `units` of a counted prompt and its reply.
    pub fn after(prompt_units: u64, prompt_tokens: u64, units: u64, tokens: u64) -> Self {
        let pin = |bytes, tokens| Pin {
            bytes,
            tokens,
            held: tokens,
            counted: true,
        };
        let mut pins = vec![pin(prompt_units, prompt_tokens)];
        if units > prompt_units && tokens > prompt_tokens {
            pins.push(pin(units, tokens));
        }
        Self {
            pins,
            ratio: prompt_tokens as f64 / prompt_units.max(1) as f64,
            media: Vec::new(),
            exact: false,
        }
    }

    /// Returns the tokens of the first `bytes` bytes.
    #[inline]
    pub fn tokens(&self, bytes: u64) -> u64 {
        self.between(self.pins.partition_point(|pin| pin.bytes <= bytes), bytes)
    }

    /// Returns [`Self::tokens`] for arguments in ascending order: each search resumes where the last one ended.
    pub fn rising(&self) -> impl Fn(u64) -> u64 {
        let last = Cell::new(self.stretch(0));
        move |bytes| {
            let mut stretch = last.get();
            if !(stretch.from..stretch.until).contains(&bytes) {
                let mut after = if bytes < stretch.from { 0 } else { stretch.after };
                while self.pins.get(after).is_some_and(|pin| pin.bytes <= bytes) {
                    after += 1;
                }
                stretch = self.stretch(after);
                last.set(stretch);
            }
            self.within(&stretch, bytes)
        }
    }

    /// Returns the tokens of the first `bytes` bytes, which end before the pin `after`.
    #[inline]
    fn between(&self, after: usize, bytes: u64) -> u64 {
        self.within(&self.stretch(after), bytes)
    }

    /// Returns the tokens of the first `bytes` bytes, which end within the stretch. Rounds without a library call.
    #[inline]
    fn within(&self, stretch: &Stretch, bytes: u64) -> u64 {
        let text = ((bytes - stretch.from) as f64 * stretch.ratio + 0.5) as u64;
        let media = stretch.media.map_or(0, |before| self.media_up_to(bytes) - before);
        stretch.at + text + media
    }

    /// Returns the tokens of the media within the first `bytes` bytes.
    fn media_up_to(&self, bytes: u64) -> u64 {
        let count = self.media.partition_point(|&(end, _)| end <= bytes);
        count.checked_sub(1).map_or(0, |last| self.media[last].1)
    }

    /// Returns the last known position within the first `bytes` bytes, and its tokens.
    pub(super) fn last_known(&self, bytes: u64) -> (u64, u64) {
        let count = self.pins.partition_point(|pin| pin.bytes <= bytes);
        let last = count.checked_sub(1).map(|last| self.pins[last]);
        last.map_or((0, 0), |pin| (pin.bytes, pin.tokens))
    }

    /// Returns the stretch before the pin `after`.
    #[inline]
    fn stretch(&self, after: usize) -> Stretch {
        let before = after.checked_sub(1).and_then(|at| self.pins.get(at));
        let (from, at) = before.map_or((0, 0), |pin| (pin.bytes, pin.tokens));
        let mut stretch = Stretch {
            after,
            from,
            until: u64::MAX,
            at,
            ratio: self.ratio,
            media: (!self.media.is_empty()).then(|| self.media_up_to(from)),
        };
        if let Some(next) = self.pins.get(after) {
            let all = next.tokens.saturating_sub(at);
            let media = stretch
                .media
                .map_or(0, |before| self.media_up_to(next.bytes) - before);
            // Media that would leave no token for the text are smaller than their kind's mean.
            if media >= all {
                stretch.media = None;
            }
            let text = if media < all { all - media } else { all };
            stretch.until = next.bytes;
            stretch.ratio = text as f64 / (next.bytes - from) as f64;
        }
        stretch
    }

    /// Returns the tokens that a worker holds when its match ends after the first `bytes` bytes.
    pub(super) fn held(&self, bytes: u64) -> u64 {
        match self.pins.binary_search_by_key(&bytes, |pin| pin.bytes) {
            Ok(at) => self.pins[at].held,
            Err(_) => self.tokens(bytes),
        }
    }

    /// Returns the number of leading keys that end within the first `cached` tokens.
    pub(super) fn found(&self, chain: &Chain, cached: u64) -> usize {
        chain.ends().partition_point(|&end| self.tokens(end) <= cached)
    }

    /// Returns the first of the `believed` leading keys that a cache of `cached` tokens certainly lacked by at least a
    /// block. Only counted positions are certain; where nothing was cached, any text of two blocks is.
    pub(super) fn missing(&self, chain: &Chain, believed: usize, cached: u64, block: u64) -> Option<usize> {
        let ends = chain.ends().get(..believed)?;
        let beyond = cached
            + if self.exact || cached > 0 {
                block
            } else {
                2 * block
            };
        if self.exact || cached == 0 {
            return Some(ends.partition_point(|&end| self.tokens(end) <= beyond)).filter(|&at| at < believed);
        }
        let pin = self.pins.iter().find(|pin| pin.counted && pin.held > beyond)?;
        ends.binary_search(&pin.bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use policy::estimate::MediaTokens;
    use policy::fingerprint::{ChainBuilder, Medium};

    use super::*;

    const HALF: Ratio = Ratio {
        ratio: 0.5,
        gap: 2,
        end_mark: 1,
        media: MediaTokens::PRIOR,
    };

    fn tip(total: u64, ended: bool) -> TokenOffset {
        TokenOffset::Tip { total, ended }
    }

    /// Returns the chain of three messages of four chunks each.
    fn chain() -> Chain {
        let mut builder = ChainBuilder::new("m", None);
        for _ in 0..3 {
            builder.begin_message("user");
            builder.push(&[b'x'; 900]);
        }
        builder.end_message();
        builder.into_chain()
    }

    fn scale(chain: &Chain, places: &[(usize, TokenOffset)]) -> Scale {
        Scale::of(chain, &[], HALF, |key| {
            let known = places.iter().find(|&&(at, _)| chain.hashes()[at] == key);
            known.map(|&(_, place)| place)
        })
    }

    #[test]
    fn counted_places_are_exact_and_the_rest_lies_between_them() {
        let chain = chain();
        let ends = chain.ends();
        let scale = scale(
            &chain,
            &[(3, TokenOffset::Counted(300)), (7, TokenOffset::Counted(200))],
        );
        assert_eq!(scale.tokens(ends[3]), 300);
        assert_eq!(scale.tokens(ends[3] / 2), 150);
        let rising = scale.rising();
        for bytes in (0..=*ends.last().unwrap() + 9).chain([0, ends[5], ends[4]]) {
            assert_eq!(rising(bytes), scale.tokens(bytes), "{bytes}");
        }
        let after = scale.tokens(ends[3] + 100);
        assert_eq!(after, 350, "the second place contradicts the first");
        assert_eq!(scale.tokens(0), 0);
    }

    #[test]
    fn a_guess_gives_way_to_what_was_counted() {
        let chain = chain();
        let scale = scale(
            &chain,
            &[(3, TokenOffset::Guessed(500)), (7, TokenOffset::Counted(400))],
        );
        assert_eq!(scale.tokens(chain.ends()[7]), 400);
        assert_eq!(scale.tokens(chain.ends()[3]), 200);
    }

    #[test]
    fn a_tip_holds_a_token_less_and_the_text_after_it_begins_behind_the_template() {
        let chain = chain();
        let end = chain.ends()[7];
        let scale = scale(&chain, &[(7, tip(640, false))]);
        assert_eq!((scale.held(end), scale.tokens(end)), (639, 642));
        assert_eq!(scale.held(end - 4), scale.tokens(end - 4));
        let scale = self::scale(&chain, &[(7, tip(640, true))]);
        assert_eq!(
            (scale.held(end), scale.tokens(end)),
            (639, 641),
            "its end mark was counted"
        );
    }

    #[test]
    fn only_what_was_counted_can_be_missing_unless_nothing_is_there() {
        let chain = chain();
        let places = [
            (3, TokenOffset::Guessed(300)),
            (7, TokenOffset::Counted(600)),
            (11, tip(900, false)),
        ];
        let scale = scale(&chain, &places);
        let missing = |believed, cached| scale.missing(&chain, believed, cached, 16);
        assert_eq!(missing(12, 160), Some(7), "the guess proves nothing");
        assert_eq!(missing(12, 576), Some(7));
        assert_eq!(missing(12, 592), Some(11));
        assert_eq!(missing(12, 896), None);
        assert_eq!(missing(7, 160), None, "no counted end was believed");
        assert_eq!(missing(12, 0), Some(0));
        assert_eq!(Scale::exact().missing(&chain, 12, 512, 16), Some(2));
    }

    #[test]
    fn media_count_by_their_kind_between_and_after_known_places() {
        let chain = chain();
        let ends = chain.ends();
        let image = HALF.media.of(Medium::Image).0;
        let part = |end| MediaPart {
            medium: Medium::Image,
            end,
        };
        // One medium within the first message, one within the last.
        let media = [part(ends[0]), part(ends[9])];
        let scale = |known: Option<u64>| {
            Scale::of(&chain, &media, HALF, |key| {
                let is_second = key == chain.hashes()[7];
                known.filter(|_| is_second).map(TokenOffset::Counted)
            })
        };
        let unknown = scale(None);
        let text = |end: u64| (end as f64 / 2.0).round() as u64;
        assert_eq!(unknown.tokens(ends[0] - 1), text(ends[0] - 1));
        assert_eq!(unknown.tokens(ends[0]), text(ends[0]) + image);
        assert_eq!(unknown.tokens(ends[11]), text(ends[11]) + 2 * image);
        let counted = scale(Some(1200));
        assert_eq!(counted.tokens(ends[7]), 1200);
        assert!(
            counted.tokens(ends[0] - 1) < 40,
            "{}",
            counted.tokens(ends[0] - 1)
        );
        assert_eq!(counted.tokens(ends[0]), 1000 + counted.tokens(ends[0] - 1));
        assert_eq!(counted.tokens(ends[11]), 1200 + text(ends[11] - ends[7]) + image);
        assert_eq!(counted.last_known(ends[11]), (ends[7], 1200));
        let rising = counted.rising();
        for bytes in 0..=ends[11] {
            assert_eq!(rising(bytes), counted.tokens(bytes), "{bytes}");
        }
        let small = scale(Some(300));
        assert_eq!((small.tokens(ends[7]), small.tokens(ends[7] / 2)), (300, 150));
    }
}
