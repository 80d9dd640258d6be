//! Splits batches, so that requests can read the index in between: one event may name a million blocks.

use std::ops::Range;

use policy::evidence::Event;

/// Largest number of events per part.
const EVENTS: usize = 64;
/// Largest number of blocks per part.
const BLOCKS: usize = 256;

/// Splits events into parts. Each part lists events with the range of their hashes to apply.
pub(super) fn batches(events: &[Event]) -> impl Iterator<Item = Vec<(&Event, Range<usize>)>> {
    let mut parts = events.iter().flat_map(parts).peekable();
    std::iter::from_fn(move || {
        let (mut batch, mut blocks) = (Vec::new(), 0);
        while batch.len() < EVENTS
            && let Some(next) = parts.next_if(|(_, part)| blocks + part.len() <= BLOCKS)
        {
            blocks += next.1.len();
            batch.push(next);
        }
        (!batch.is_empty()).then_some(batch)
    })
}

/// Splits an event's hashes. An event without hashes is one part.
fn parts(event: &Event) -> impl Iterator<Item = (&Event, Range<usize>)> {
    let all = event.hashes().len();
    let parts = (0..all.max(1)).step_by(BLOCKS);
    parts.map(move |from| (event, from..(from + BLOCKS).min(all)))
}

#[cfg(test)]
mod tests {
    use policy::evidence::Medium;

    use super::*;

    #[test]
    fn parts_are_bounded_and_cover_every_hash() {
        let removed = |count: usize| Event::Removed {
            hashes: vec![7; count],
            medium: Medium::Gpu,
            group: 0,
        };
        let mut events = vec![removed(1 << 20), Event::Cleared, removed(0), removed(BLOCKS + 1)];
        events.extend((0..200).map(|at| removed(at % 9)));
        let mut next = events.iter().map(|event| (event, 0)).peekable();
        for batch in batches(&events) {
            let blocks: usize = batch.iter().map(|(_, part)| part.len()).sum();
            assert!(!batch.is_empty() && batch.len() <= EVENTS && blocks <= BLOCKS);
            for (event, part) in batch {
                let (expected, from) = next.peek_mut().unwrap();
                assert!(std::ptr::eq(*expected, event) && *from == part.start);
                *from = part.end;
                if part.end == event.hashes().len() {
                    next.next();
                }
            }
        }
        assert!(next.next().is_none());
    }
}
