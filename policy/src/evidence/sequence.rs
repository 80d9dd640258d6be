//! The numbers of a stream of batches: in order, twice, with a gap, begun anew.
//!
//! A publisher numbers its batches from 0 and keeps the newest for replay. Live batches come in rising order on one
//! connection; batches may be missing; a replay overlaps what is queued behind it. So a number that is behind what was
//! applied is a duplicate as long as the live numbers rise, and a new process where they fall. After a pause the same
//! question is asked by replaying the last batch applied: the same process answers with the same bytes.

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Apply,
    /// It was applied already.
    Duplicate,
    /// Batches from this number on are missing: ask for a replay, and show the batch again after it.
    Gap {
        /// The first number that is missing.
        from: u64,
    },
    /// The publisher is a new process, or what is missing is lost: forget everything, then show the batch again.
    Restarted,
}

/// Where a subscriber stands in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// The number to be applied next.
    next: u64,
    /// Digest of the batch applied last.
    last: Option<u64>,
    /// The newest number seen live on this connection.
    live: Option<u64>,
}

impl Sequence {
    /// Nothing seen: the first batch is number 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number to be applied next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Where a replay has to begin so that it also shows whether the publisher is still the same process.
    #[must_use]
    pub fn resume_from(&self) -> u64 {
        if self.last.is_some() {
            self.next.saturating_sub(1)
        } else {
            self.next
        }
    }

    /// A batch came live. A batch answered with [`Verdict::Gap`] is shown again after the replay.
    pub fn live(&mut self, number: u64) -> Verdict {
        if self.live.is_some_and(|live| number < live) {
            return Verdict::Restarted;
        }
        self.live = Some(number);
        match number {
            _ if number < self.next => Verdict::Duplicate,
            _ if number == self.next => Verdict::Apply,
            _ => Verdict::Gap { from: self.next },
        }
    }

    /// Whether a replay that was asked from [`Self::resume_from`] on, and whose first batch has this number (`None`: it is
    /// empty), goes on from what was applied. If not, everything has to be forgotten.
    #[must_use]
    pub fn continues_with(&self, first: Option<u64>) -> bool {
        match (self.last, first) {
            (None, first) => first.is_none_or(|first| first <= self.next),
            (Some(_), first) => first.is_some_and(|first| first < self.next),
        }
    }

    /// A batch came as part of a replay that was asked from [`Self::resume_from`] on.
    #[must_use]
    pub fn replayed(&self, number: u64, digest: u64) -> Verdict {
        match number {
            _ if number == self.next => Verdict::Apply,
            _ if number > self.next => Verdict::Restarted,
            _ if number + 1 == self.next && self.last.is_some_and(|last| last != digest) => {
                Verdict::Restarted
            }
            _ => Verdict::Duplicate,
        }
    }

    /// The batch with the number [`Self::next`] was applied.
    pub fn applied(&mut self, digest: u64) {
        self.next += 1;
        self.last = Some(digest);
    }

    /// The connection is a new one: live numbers may begin anywhere behind what was applied.
    pub fn reconnected(&mut self) {
        self.live = None;
    }

    /// Everything was forgotten; `number` is the first batch that is still to be had.
    pub fn begin_at(&mut self, number: u64) {
        *self = Self {
            next: number,
            last: None,
            live: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batches_in_order_are_applied_once() {
        let mut sequence = Sequence::new();
        for number in 0..3 {
            assert_eq!(sequence.live(number), Verdict::Apply);
            sequence.applied(number);
            assert_eq!(sequence.live(number), Verdict::Duplicate);
        }
        assert_eq!(sequence.live(5), Verdict::Gap { from: 3 });
        assert_eq!(sequence.live(0), Verdict::Restarted);
    }

    #[test]
    fn what_a_replay_brought_early_is_a_duplicate_when_it_comes_live() {
        let mut sequence = Sequence::new();
        for number in 0..4 {
            assert_eq!(sequence.replayed(number, number), Verdict::Apply);
            sequence.applied(number);
        }
        assert_eq!(sequence.live(0), Verdict::Duplicate);
        assert_eq!(sequence.live(3), Verdict::Duplicate);
        assert_eq!(sequence.live(4), Verdict::Apply);
    }

    #[test]
    fn a_replay_whose_last_batch_differs_comes_from_another_process() {
        let mut sequence = Sequence::new();
        sequence.applied(7);
        assert_eq!(sequence.resume_from(), 0);
        assert!(sequence.continues_with(Some(0)) && !sequence.continues_with(None));
        assert_eq!(sequence.replayed(0, 7), Verdict::Duplicate);
        assert_eq!(sequence.replayed(0, 8), Verdict::Restarted);
        assert_eq!(sequence.replayed(2, 9), Verdict::Restarted, "number 1 is lost");
    }

    /// A publisher with lives and a bounded log, and a subscriber that obeys the verdicts.
    #[derive(Default)]
    struct World {
        life: u64,
        sent: u64,
        kept: Vec<u64>,
        queue: std::collections::VecDeque<(u64, u64)>,
        sequence: Sequence,
        /// What was applied since everything was last forgotten: (life, number).
        applied: Vec<(u64, u64)>,
    }

    fn digest(life: u64, number: u64) -> u64 {
        life * 1_000_003 + number
    }

    impl World {
        fn publish(&mut self, lost: bool) {
            self.kept.push(self.sent);
            if self.kept.len() > 3 {
                self.kept.remove(0);
            }
            if !lost {
                self.queue.push_back((self.life, self.sent));
            }
            self.sent += 1;
        }

        fn apply(&mut self, life: u64, number: u64) {
            self.applied.push((life, number));
            self.sequence.applied(digest(life, number));
        }

        fn forget(&mut self, number: u64) {
            self.applied.clear();
            self.sequence.begin_at(number);
        }

        fn replay(&mut self) {
            let from = self.sequence.resume_from();
            let first = self.kept.first().copied().unwrap_or(0);
            let batches: Vec<u64> = self
                .kept
                .iter()
                .copied()
                .filter(|&number| number >= from)
                .collect();
            if !self.sequence.continues_with(batches.first().copied()) {
                self.forget(first);
                return self.replay();
            }
            for number in batches {
                let mut verdict = self.sequence.replayed(number, digest(self.life, number));
                if verdict == Verdict::Restarted {
                    self.forget(first);
                    if number != first {
                        return self.replay();
                    }
                    verdict = self.sequence.replayed(number, digest(self.life, number));
                }
                if verdict == Verdict::Apply {
                    self.apply(self.life, number);
                }
            }
        }

        fn receive(&mut self) {
            let Some((life, number)) = self.queue.pop_front() else {
                return;
            };
            match self.sequence.live(number) {
                Verdict::Apply => self.apply(life, number),
                Verdict::Duplicate => {}
                Verdict::Gap { .. } => {
                    self.replay();
                    match self.sequence.live(number) {
                        Verdict::Apply => self.apply(life, number),
                        Verdict::Duplicate => {}
                        verdict => unreachable!("{verdict:?}"),
                    }
                }
                Verdict::Restarted => {
                    self.forget(0);
                    self.replay();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_applied_is_always_an_unbroken_stretch_of_one_life(
            steps in prop::collection::vec(0..12_u8, 0..120),
        ) {
            let mut world = World::default();
            for step in steps {
                match step {
                    0..=4 => world.publish(false),
                    5 | 6 => world.publish(true),
                    7..=9 => world.receive(),
                    10 => world.replay(),
                    // A new process: its connection, and what was queued on it, is gone.
                    _ => {
                        world.life += 1;
                        world.sent = 0;
                        world.kept.clear();
                        world.queue.clear();
                        world.sequence.reconnected();
                        world.replay();
                    }
                }
                let broken = world.applied.windows(2).any(|pair| pair[0].0 != pair[1].0 || pair[0].1 + 1 != pair[1].1);
                prop_assert!(!broken, "{:?}", world.applied);
                prop_assert!(world.applied.last().is_none_or(|last| last.1 + 1 == world.sequence.next()));
            }
            // Once all is read and asked for, the newest batch is known.
            while !world.queue.is_empty() {
                world.receive();
            }
            world.replay();
            prop_assert_eq!(world.sequence.next(), world.sent);
        }
    }
}
