//! The blocks that each text key fills, bounded in keys and in blocks.
//!
//! A key of 256 bytes of text fills four blocks, an image of four thousand tokens fills 256. So each half stores its
//! blocks in one vector, and is full when either its keys or its blocks are. Lookups wait while a key is stored, so a
//! full half takes over the older one's memory: nothing is freed, and nothing is allocated from the second time on.

use rustc_hash::FxHashMap;

use crate::ids::PrefixHash;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span<'a> {
    /// Number of blocks up to the key's end.
    pub(super) depth: u32,
    pub(super) blocks: &'a [u64],
    /// The last of the blocks so far, which may belong to an earlier key; `None` without any.
    pub(super) last: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    depth: u32,
    from: u32,
    count: u32,
    last: Option<u64>,
}

#[derive(Debug, Default)]
struct Half {
    places: FxHashMap<PrefixHash, Place>,
    blocks: Vec<u64>,
}

impl Half {
    fn get(&self, key: PrefixHash) -> Option<Span<'_>> {
        let place = self.places.get(&key)?;
        let from = place.from as usize;
        Some(Span {
            depth: place.depth,
            blocks: self.blocks.get(from..from + place.count as usize)?,
            last: place.last,
        })
    }

    /// Overwrites a key's blocks if their number is unchanged. Returns whether it did.
    fn renew(&mut self, key: PrefixHash, span: Span<'_>) -> bool {
        let Some(place) = self.places.get_mut(&key) else {
            return false;
        };
        let from = place.from as usize;
        let Some(blocks) = self.blocks.get_mut(from..from + place.count as usize) else {
            return false;
        };
        if blocks.len() != span.blocks.len() {
            return false;
        }
        blocks.copy_from_slice(span.blocks);
        place.depth = span.depth;
        place.last = span.last;
        true
    }
}

/// A map that forgets keys not renewed for a while, like [`Recent`](crate::recent::Recent).
#[derive(Debug)]
pub(super) struct Spans {
    young: Half,
    old: Half,
    half_keys: usize,
    half_blocks: usize,
}

impl Spans {
    pub(super) fn new(most_keys: usize, most_blocks: usize) -> Self {
        Self {
            young: Half::default(),
            old: Half::default(),
            half_keys: (most_keys / 2).max(1),
            half_blocks: (most_blocks / 2).clamp(1, u32::MAX as usize),
        }
    }

    pub(super) fn get(&self, key: PrefixHash) -> Option<Span<'_>> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(super) fn takes(&self, blocks: usize) -> bool {
        blocks <= self.half_blocks
    }

    /// Stores a span. One longer than [`takes`](Self::takes) allows is dropped.
    pub(super) fn put(&mut self, key: PrefixHash, span: Span<'_>) {
        if self.young.renew(key, span) {
            return;
        }
        if !self.takes(span.blocks.len()) {
            self.remove(key);
            return;
        }
        let young = &self.young;
        if young.places.len() >= self.half_keys && !young.places.contains_key(&key)
            || young.blocks.len() + span.blocks.len() > self.half_blocks
        {
            self.turn_over();
        }
        let Half { places, blocks } = &mut self.young;
        let from = blocks.len();
        if blocks.capacity() < from + span.blocks.len() {
            // Bounded growth, since doubling would exceed a half's capacity.
            let more = from.max(1024).min(self.half_blocks - from);
            blocks.reserve_exact(more.max(span.blocks.len()));
        }
        blocks.extend_from_slice(span.blocks);
        let place = Place {
            depth: span.depth,
            from: from as u32,
            count: span.blocks.len() as u32,
            last: span.last,
        };
        places.insert(key, place);
    }

    fn turn_over(&mut self) {
        std::mem::swap(&mut self.young, &mut self.old);
        self.young.places.clear();
        self.young.blocks.clear();
        // Reserves at once, since the half will fill again.
        self.young.places.reserve(self.old.places.len());
        self.young.blocks.reserve_exact(self.old.blocks.len());
    }

    pub(super) fn remove(&mut self, key: PrefixHash) {
        self.young.places.remove(&key);
        self.old.places.remove(&key);
    }

    #[cfg(test)]
    fn held(&self) -> (usize, usize) {
        let (young, old) = (&self.young, &self.old);
        (
            young.places.len() + old.places.len(),
            young.blocks.len() + old.blocks.len(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn images_of_thousands_of_tokens_fill_no_more_memory_than_text() {
        let mut spans = Spans::new(1 << 10, 1 << 12);
        let image = vec![7; 256];
        for key in 0..1000 {
            let span = Span {
                depth: 256,
                blocks: &image,
                last: Some(7),
            };
            spans.put(PrefixHash(key), span);
            let (_, blocks) = spans.held();
            assert!(blocks <= 1 << 12, "{blocks}");
            assert_eq!(spans.get(PrefixHash(key)), Some(span));
        }
        let reserved = spans.young.blocks.capacity() + spans.old.blocks.capacity();
        assert!(reserved <= 1 << 12, "{reserved}");
        let long = vec![7; 2049];
        spans.put(
            PrefixHash(999),
            Span {
                depth: 2049,
                blocks: &long,
                last: Some(7),
            },
        );
        assert_eq!(
            spans.get(PrefixHash(999)),
            None,
            "one that would need more is not known"
        );
    }

    proptest! {
        #[test]
        fn whatever_is_known_is_what_was_put_last(
            steps in prop::collection::vec((0..24_u64, 0..6_usize, 0..9_u8), 1..300),
        ) {
            let (mut spans, mut naive) = (Spans::new(16, 48), BTreeMap::new());
            for (at, (key, count, what)) in (0_u32..).zip(steps) {
                let name = PrefixHash(key);
                if what == 0 {
                    spans.remove(name);
                    naive.remove(&key);
                } else {
                    let blocks = vec![u64::from(at); count];
                    spans.put(name, Span { depth: at, blocks: &blocks, last: blocks.last().copied() });
                    prop_assert_eq!(spans.get(name), Some(Span { depth: at, blocks: &blocks, last: blocks.last().copied() }));
                    naive.insert(key, (at, blocks));
                }
                for key in 0..24 {
                    let known = spans.get(PrefixHash(key)).map(|span| (span.depth, span.blocks.to_vec()));
                    prop_assert!(known.is_none() || known.as_ref() == naive.get(&key), "{}", key);
                }
                let (keys, blocks) = spans.held();
                prop_assert!(keys <= 16 && blocks <= 48);
            }
        }
    }
}
