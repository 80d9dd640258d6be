//! The sequence numbers of a stream of batches: in order, duplicate, with a gap, or restarted.
//!
//! A publisher numbers its batches from 0 and keeps the newest for replay. Live batches have rising numbers on one
//! connection; batches may be missing; a replay overlaps with the batches queued behind it. So a number below those
//! applied is a duplicate as long as the live numbers rise, and shows a new process where they fall. After a pause, the
//! last applied batch is replayed to tell the two apart: the same process returns the same bytes.

/// The treatment of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The batch is the next one: apply it.
    Apply,
    /// The batch was applied already: skip it.
    Duplicate,
    /// Batches from this number on are missing: ask for a replay, then offer the batch again.
    Gap {
        /// The first missing number.
        from: u64,
    },
    /// The publisher is a new process, or missing batches are lost: drop all state, then offer the batch again.
    Restarted,
}

/// A subscriber's position in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    next: u64,
    last: Option<u64>,
    /// The newest live number on this connection.
    live: Option<u64>,
}

impl Sequence {
    /// Creates the state before the first batch, which is number 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of the next batch to apply.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the first number of a replay that also shows whether the publisher is the same process.
    pub fn resume_from(&self) -> u64 {
        if self.last.is_some() {
            self.next.saturating_sub(1)
        } else {
            self.next
        }
    }

    /// Classifies a live batch. After [`Verdict::Gap`] the batch is offered again after the replay.
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

    /// Returns whether a replay from [`Self::resume_from`] whose first batch has the number `first` (`None`: it is
    /// empty) continues what was applied. If not, all state must be dropped.
    pub fn continues_with(&self, first: Option<u64>) -> bool {
        match (self.last, first) {
            (None, first) => first.is_none_or(|first| first <= self.next),
            (Some(_), first) => first.is_some_and(|first| first < self.next),
        }
    }

    /// Classifies a batch of a replay from [`Self::resume_from`].
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

    /// Records that the batch numbered [`Self::next`] was applied.
    pub fn applied(&mut self, digest: u64) {
        self.next += 1;
        self.last = Some(digest);
    }

    /// Starts a new connection: live numbers may begin anywhere after what was applied.
    pub fn reconnected(&mut self) {
        self.live = None;
    }

    /// Restarts after all state was dropped; `number` is the first batch still available.
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

    /// A publisher with restarts and a bounded log, and a subscriber that obeys the verdicts.
    #[derive(Default)]
    struct World {
        life: u64,
        sent: u64,
        kept: Vec<u64>,
        queue: std::collections::VecDeque<(u64, u64)>,
        sequence: Sequence,
        /// Batches applied since all state was last dropped: (life, number).
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
                    // A new process: its connection and queue are gone.
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
            while !world.queue.is_empty() {
                world.receive();
            }
            world.replay();
            prop_assert_eq!(world.sequence.next(), world.sent);
        }
    }
}
