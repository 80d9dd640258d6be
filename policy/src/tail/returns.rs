//! Whether and when a conversation returns, learned from the gaps between a response and the next turn.
//!
//! *When*: one distribution F of gaps over all traffic. *Whether*: a share p per [`Class`], shrunk towards a coarser
//! class where evidence is little. Silent conversations are right-censored: they count as far as they were observed.
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
//! G is hits per unit of time that the copy occupies cache: hit density (Beckmann, Chen, Cidon, "LHD", NSDI 2018).
//!
//! Rejected: a gap distribution per class. Most see too few gaps for a tail; it did worse than LRU in large caches.

#[cfg(test)]
mod twin;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::class::{CLASSES, Class, Seen, shares};
use crate::units::Millis;

const MEMORY: usize = 6_000;
/// Responses between refreshes: `REFRESH_EVERY`, or one in `REFRESH_SHARE` of those kept if that is more.
const REFRESH_EVERY: usize = 128;
const REFRESH_SHARE: usize = 16;
/// Number of gap bins, each half a power of two wide, from 1 ms to 50 days.
const BINS: usize = 64;
/// Prior: returns assumed at the start, spread evenly over the bins.
const PRIOR: f64 = 4.0;
/// Upper bound on p: no class is certain to return.
const MOST: f64 = 0.98;

#[derive(Clone, Copy, Debug)]
struct Record {
    ended: Millis,
    class: Class,
    /// `None` while its conversation is silent.
    gap: Option<Millis>,
}

/// A complete response and the event that followed it, as saved across restarts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Class of the turn.
    pub class: Class,
    /// Time since the response was complete.
    pub age: Millis,
    /// The event that followed the response.
    pub then: Then,
}

/// The event that followed a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Then {
    /// The next turn, after this gap.
    Next(Millis),
    /// Nothing so far. Carries the conversation if its next turn can be recognised.
    Silence(Option<u64>),
}

/// Estimates of whether and when conversations return.
#[derive(Clone, Debug)]
pub struct Returns {
    records: VecDeque<Record>,
    /// Sequence number of the oldest record.
    first: u64,
    /// Sequence number of the last record of each silent conversation.
    silent: FxHashMap<u64, u64>,
    since: usize,
    /// p per class.
    share: Vec<f64>,
    /// F at the upper edge of each bin.
    gaps: [f64; BINS],
    /// Integral of F up to the upper edge of each bin.
    area: [f64; BINS],
    horizon: Millis,
    /// F(a+τ) − F(a), and ∫ F over that span, by the bin of `a`.
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

/// Returns the bin of a time: twice its binary logarithm, from the bits of the number, since every trim needs many.
fn bin(time: Millis) -> usize {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = time.0.max(1.0).to_bits();
    let exponent = (bits >> 52) as usize - 1023;
    let upper_half = bits & FRACTION >= std::f64::consts::SQRT_2.to_bits() & FRACTION;
    (2 * exponent + usize::from(upper_half)).min(BINS - 1)
}

fn edge(bin: usize) -> f64 {
    2f64.powf((bin + 1) as f64 / 2.0)
}

impl Returns {
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

    /// Sets the horizon τ: the time that an unused copy stays in an LRU cache.
    pub(super) fn set_horizon(&mut self, horizon: Millis) {
        if (horizon.0 - self.horizon.0).abs() > 0.05 * self.horizon.0 {
            self.horizon = horizon;
            self.look_ahead();
        }
    }

    /// Returns the horizon τ.
    pub fn horizon(&self) -> Millis {
        self.horizon
    }

    /// Returns G for a conversation silent for `age`: returns per ms that the copy occupies cache.
    pub fn rate(&self, class: Class, age: Millis) -> f64 {
        let (returns, area) = self.within[bin(age)];
        let share = self.share[class.index()];
        // Ties go to the older one.
        let older = 1.0 + 1e-6 / (1.0 + age.0 * 1e-3);
        share * returns / (self.horizon.0 - share * area).max(1e-3) * older
    }

    /// Returns p of a class.
    pub fn share(&self, class: Class) -> f64 {
        self.share[class.index()]
    }

    /// Returns the recorded responses and what followed them, oldest first.
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

    /// Inserts the outcomes saved by another process before those of this one.
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

    /// Estimates F: Kaplan–Meier over the bins, scaled to end at 1 and mixed with the prior.
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
            // A silent conversation last seen within a bin was not observed through the whole bin.
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

    fn before(&self, bin: usize) -> f64 {
        bin.checked_sub(1).map_or(0.0, |before| self.gaps[before])
    }

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
