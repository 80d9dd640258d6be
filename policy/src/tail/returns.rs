//! Does a conversation come back, and when: learned from gaps between an answer and the next turn.
//!
//! Two things are learned apart. *When* those come back that do: one distribution F of gaps, of all traffic. *Whether*:
//! a share p per [`Class`], a class with little evidence leaning on a coarser one. A silent conversation says less than
//! one that came back, so both count it as far as it was observed (right censoring):
//!
//! ```text
//! F: the Kaplan–Meier estimate over all gaps, scaled to end at 1
//! p(class) = (returned + n·p(parent)) / (expected + n),    expected = Σ returned 1 + Σ silent F(age)
//! ```
//!
//! From these, for a conversation silent for `a`, within a horizon τ:
//!
//! ```text
//! P(returns within τ | a)  = p·(F(a+τ) − F(a)) / (1 − p·F(a))
//! rate G                   = p·(F(a+τ) − F(a)) / ∫ₐᵃ⁺ᵗ (1 − p·F)
//! ```
//!
//! G is hits per unit of time that the copy takes room: hit density (Beckmann, Chen, Cidon, "LHD", NSDI 2018).
//!
//! Rejected: a distribution of gaps per class. Most classes see too few gaps for a tail, and it lost to plain LRU in
//! large caches.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::class::{CLASSES, Class, Seen, shares};
use crate::units::Millis;

/// Answers that are remembered.
const MEMORY: usize = 6_000;
/// Answers between two times that the estimate is made anew, and the share of those remembered if that is more.
const REFRESH_EVERY: usize = 128;
const REFRESH_SHARE: usize = 16;
/// Bins of gaps: half powers of two, from 1 ms to 50 days.
const BINS: usize = 64;
/// Returns that are taken for seen at the start, as many in each bin.
const PRIOR: f64 = 4.0;
/// The share that is believed at most: nothing is certain to return.
const MOST: f64 = 0.98;

/// An answer that is over, and what followed it.
#[derive(Clone, Copy, Debug)]
struct Record {
    ended: Millis,
    class: Class,
    /// `None` while its conversation is silent.
    gap: Option<Millis>,
}

/// An answer and what followed it, for a restart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The turn's class.
    pub class: Class,
    /// Time since its answer was complete.
    pub age: Millis,
    /// What followed it.
    pub then: Then,
}

/// What followed an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Then {
    /// The next turn, after this gap.
    Next(Millis),
    /// Nothing so far; the conversation, if another turn of it can be told.
    Silence(Option<u64>),
}

/// What is known of returns.
#[derive(Clone, Debug)]
pub struct Returns {
    records: VecDeque<Record>,
    /// The number of the oldest record.
    first: u64,
    /// The last record of each conversation that is silent.
    silent: FxHashMap<u64, u64>,
    since: usize,
    /// p of each class.
    share: Vec<f64>,
    /// F at the upper edge of each bin, and its integral up to there.
    gaps: [f64; BINS],
    area: [f64; BINS],
    horizon: Millis,
    /// F(a+τ) − F(a) and ∫ F over that span, by the bin of `a`.
    within: [(f64, f64); BINS],
}

impl Default for Returns {
    fn default() -> Self {
        let mut returns = Self {
            records: VecDeque::new(),
            first: 1 << 32,
            silent: FxHashMap::default(),
            since: 0,
            share: vec![0.5; CLASSES],
            gaps: [0.0; BINS],
            area: [0.0; BINS],
            horizon: Millis(60_000.0),
            within: [(0.0, 0.0); BINS],
        };
        returns.refresh(Millis::ZERO);
        returns
    }
}

/// The bin of a time: the number of edges at or below it. Twice its binary logarithm, read off the bits of the number: this is
/// asked for each candidate of each trim.
fn bin(time: Millis) -> usize {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = time.0.max(1.0).to_bits();
    let exponent = (bits >> 52) as usize - 1023;
    let upper_half = bits & FRACTION >= std::f64::consts::SQRT_2.to_bits() & FRACTION;
    (2 * exponent + usize::from(upper_half)).min(BINS - 1)
}

/// The upper edge of a bin, in ms.
fn edge(bin: usize) -> f64 {
    2f64.powf((bin + 1) as f64 / 2.0)
}

impl Returns {
    /// A turn of the conversation arrived.
    pub(super) fn arrived(&mut self, now: Millis, conversation: u64) {
        let Some(number) = self.silent.remove(&conversation) else {
            return;
        };
        let record = number
            .checked_sub(self.first)
            .and_then(|at| self.records.get_mut(at as usize));
        if let Some(record) = record {
            record.gap = Some(now.saturating_sub(record.ended));
        }
    }

    /// Its answer is complete.
    pub(super) fn answered(&mut self, now: Millis, conversation: u64, class: Class) {
        self.silent
            .insert(conversation, self.first + self.records.len() as u64);
        self.records.push_back(Record {
            ended: now,
            class,
            gap: None,
        });
        if self.records.len() > MEMORY {
            self.records.pop_front();
            self.first += 1;
            if self.silent.len() > 2 * MEMORY {
                let first = self.first;
                self.silent.retain(|_, number| *number >= first);
            }
        }
        self.since += 1;
        if self.since >= REFRESH_EVERY.max(self.records.len() / REFRESH_SHARE) {
            self.refresh(now);
        }
    }

    /// How far ahead a return is worth waiting for: the time that a copy stays when it is not used.
    pub(super) fn set_horizon(&mut self, horizon: Millis) {
        if (horizon.0 - self.horizon.0).abs() > 0.05 * self.horizon.0 {
            self.horizon = horizon;
            self.look_ahead();
        }
    }

    /// The horizon τ.
    #[must_use]
    pub fn horizon(&self) -> Millis {
        self.horizon
    }

    /// P(returns within τ | silent for `age`).
    #[must_use]
    pub fn probability(&self, class: Class, age: Millis) -> f64 {
        let at = bin(age);
        let share = self.share[class.index()];
        (share * self.within[at].0 / (1.0 - share * self.before(at))).clamp(0.0, 1.0)
    }

    /// G: returns per ms that the copy takes room, for a conversation silent for `age`.
    #[must_use]
    pub fn rate(&self, class: Class, age: Millis) -> f64 {
        let (returns, area) = self.within[bin(age)];
        let share = self.share[class.index()];
        // Of equals the older goes first.
        let older = 1.0 + 1e-6 / (1.0 + age.0 * 1e-3);
        share * returns / (self.horizon.0 - share * area).max(1e-3) * older
    }

    /// G beside its definition, for a conversation as old as the lower edge of its bin: numerators and denominators in
    /// a thousand steps.
    #[cfg(test)]
    pub(super) fn rate_and_twin(&self, class: Class, age: Millis, horizon: f64) -> (f64, f64) {
        let at = bin(age);
        let begin = if at == 0 { 0.0 } else { edge(at - 1) };
        let share = self.share[class.index()];
        let steps = 20_000;
        let step = horizon / f64::from(steps);
        let stays = |time: f64| 1.0 - share * self.at(time).0;
        let returns = stays(begin) - stays(begin + horizon);
        let room: f64 = (0..steps)
            .map(|at| stays(begin + (f64::from(at) + 0.5) * step) * step)
            .sum();
        (self.rate(class, age), returns / room)
    }

    /// p of a class.
    #[must_use]
    pub fn share(&self, class: Class) -> f64 {
        self.share[class.index()]
    }

    /// The remembered answers and what followed them, the oldest first.
    #[must_use]
    pub fn outcomes(&self, now: Millis) -> Vec<Outcome> {
        let conversations: FxHashMap<u64, u64> = self.silent.iter().map(|(&key, &at)| (at, key)).collect();
        let outcome = |(number, record): (u64, &Record)| Outcome {
            class: record.class,
            age: now.saturating_sub(record.ended),
            then: match record.gap {
                Some(gap) => Then::Next(gap),
                None => Then::Silence(conversations.get(&number).copied()),
            },
        };
        (self.first..).zip(&self.records).map(outcome).collect()
    }

    /// Puts what another process had learned before what this one has.
    pub fn restore(&mut self, now: Millis, outcomes: &[Outcome]) {
        for outcome in outcomes
            .iter()
            .rev()
            .take(MEMORY - self.records.len().min(MEMORY))
        {
            self.first -= 1;
            let gap = match outcome.then {
                Then::Next(gap) => Some(gap),
                Then::Silence(conversation) => {
                    if let Some(conversation) = conversation {
                        self.silent.entry(conversation).or_insert(self.first);
                    }
                    None
                }
            };
            self.records.push_front(Record {
                ended: now - outcome.age,
                class: outcome.class,
                gap,
            });
        }
        self.refresh(now);
    }

    fn refresh(&mut self, now: Millis) {
        self.since = 0;
        self.learn_gaps(now);
        self.learn_shares(now);
        self.look_ahead();
    }

    /// Kaplan–Meier over the bins, scaled to end at 1, and mixed with a few returns at any time.
    fn learn_gaps(&mut self, now: Millis) {
        let (mut ended, mut left) = ([0.0; BINS], [0.0; BINS]);
        for record in &self.records {
            match record.gap {
                Some(gap) => ended[bin(gap)] += 1.0,
                None => left[bin(now.saturating_sub(record.ended))] += 1.0,
            }
        }
        let returned: f64 = ended.iter().sum();
        let mut at_risk: f64 = returned + left.iter().sum::<f64>();
        let mut survival = 1.0;
        for at in 0..BINS {
            // What was last seen within a bin was not observed through it.
            at_risk -= left[at];
            survival *= (1.0 - ended[at] / at_risk.max(1.0)).max(0.0);
            at_risk -= ended[at];
            self.gaps[at] = 1.0 - survival;
        }
        let all = self.gaps[BINS - 1].max(f64::MIN_POSITIVE);
        for at in 0..BINS {
            let any = (at + 1) as f64 / BINS as f64;
            self.gaps[at] = (returned * self.gaps[at] / all + PRIOR * any) / (returned + PRIOR);
        }
        let (mut before, mut area) = (0.0, 0.0);
        for at in 0..BINS {
            let width = edge(at) - if at == 0 { 0.0 } else { edge(at - 1) };
            area += width * (self.gaps[at] + before) / 2.0;
            before = self.gaps[at];
            self.area[at] = area;
        }
    }

    fn learn_shares(&mut self, now: Millis) {
        let mut seen = vec![Seen::default(); CLASSES];
        for record in &self.records {
            let seen = &mut seen[record.class.index()];
            seen.returned += f64::from(u8::from(record.gap.is_some()));
            seen.expected += match record.gap {
                Some(_) => 1.0,
                None => self.before(bin(now.saturating_sub(record.ended))),
            };
        }
        self.share = shares(&seen);
        self.share.iter_mut().for_each(|share| *share = share.min(MOST));
    }

    fn look_ahead(&mut self) {
        let horizon = self.horizon.0;
        for at in 0..BINS {
            let age = if at == 0 { 0.0 } else { edge(at - 1) };
            let (from, until) = (self.at(age), self.at(age + horizon));
            self.within[at] = (until.0 - from.0, until.1 - from.1);
        }
    }

    /// F at the lower edge of a bin.
    fn before(&self, bin: usize) -> f64 {
        bin.checked_sub(1).map_or(0.0, |before| self.gaps[before])
    }

    /// F and its integral at a time in ms.
    fn at(&self, time: f64) -> (f64, f64) {
        let at = bin(Millis(time));
        let begin = if at == 0 { 0.0 } else { edge(at - 1) };
        let (gap, area) = if at == 0 {
            (0.0, 0.0)
        } else {
            (self.gaps[at - 1], self.area[at - 1])
        };
        let past = (time - begin).max(0.0);
        let width = edge(at) - begin;
        if past >= width {
            return (self.gaps[at], self.area[at] + (past - width) * self.gaps[at]);
        }
        let now = gap + (self.gaps[at] - gap) * past / width;
        (now, area + past * (gap + now) / 2.0)
    }
}
