//! The silent conversations of each worker and the search for the end of least value.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::lateness::{OnWorker, Silent};
use super::returns::Returns;
use super::{Answered, SAMPLE};
use crate::units::{Millis, Tokens};

/// Conversations kept per worker.
const MOST: usize = 4_096;
/// Upper bound on the number of trims per conversation. A step should be shorter than the free tail of a long context.
const STEPS: u64 = 64;
/// Factor on the value of a copy whose conversation continued on another worker.
const MOVED: f64 = 0.1;

/// The terms of an end's value, recorded for explanation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Worth {
    /// G, in returns per second.
    pub returns_per_s: f64,
    /// P with the tokens that are already missing.
    pub late: f64,
    /// c: the cost of the end's last token, relative to a prompt's first.
    pub per_token: f64,
    /// ε: late turns behind one, on average.
    pub epsilon: f64,
    /// κ: turns behind one, on average.
    pub kappa: f64,
    /// V: the value of the end.
    pub value: f64,
}

/// A trim: the part of a conversation past `keep` is given up.
#[derive(Clone, Debug, PartialEq)]
pub struct Trim<P> {
    /// The conversation.
    pub conversation: u64,
    /// Length of the conversation.
    pub length: Tokens,
    /// Tokens kept before this trim.
    pub end: Tokens,
    /// Tokens kept after this trim.
    pub keep: Tokens,
    /// The terms of the end's value.
    pub worth: Worth,
    /// The caller's handle.
    pub what: P,
}

#[derive(Clone, Debug)]
struct End<P> {
    of: Answered<P>,
    given: u64,
    moved: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Ends<P> {
    ends: Vec<End<P>>,
    places: FxHashMap<u64, usize>,
    /// The candidates compared at time `drawn`: all ends, or a random sample.
    sample: Vec<Candidate>,
    drawn: Millis,
    random: u64,
}

impl<P> Default for Ends<P> {
    fn default() -> Self {
        Self {
            ends: Vec::new(),
            places: FxHashMap::default(),
            sample: Vec::new(),
            drawn: Millis::ZERO,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    conversation: u64,
    rate: f64,
    value: f64,
}

impl<P> End<P> {
    fn silent(&self) -> Silent {
        Silent {
            length: self.of.length,
            objective: self.of.objective,
        }
    }

    fn rate(&self, now: Millis, returns: &Returns) -> f64 {
        let stays = if self.moved { MOVED } else { 1.0 };
        stays * returns.rate(self.of.class, now.saturating_sub(self.of.at))
    }
}

impl<P: Clone> Ends<P> {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn add(&mut self, of: Answered<P>) {
        self.sample.clear();
        let end = End {
            of,
            given: 0,
            moved: false,
        };
        if let Some(&at) = self.places.get(&end.of.conversation) {
            self.ends[at] = end;
            return;
        }
        if self.ends.len() >= MOST {
            let at = self.any();
            self.remove(self.ends[at].of.conversation);
        }
        self.places.insert(end.of.conversation, self.ends.len());
        self.ends.push(end);
    }

    pub(super) fn remove(&mut self, conversation: u64) {
        let Some(at) = self.places.remove(&conversation) else {
            return;
        };
        self.ends.swap_remove(at);
        if let Some(end) = self.ends.get(at) {
            self.places.insert(end.of.conversation, at);
        }
    }

    pub(super) fn moved(&mut self, conversation: u64) {
        if let Some(&at) = self.places.get(&conversation) {
            self.ends[at].moved = true;
        }
    }

    pub(super) fn next(
        &mut self,
        now: Millis,
        need: Tokens,
        returns: &Returns,
        harm: OnWorker<'_>,
    ) -> Option<Trim<P>> {
        let (least, second, at) = self.least(now, returns, harm)?;
        let end = &mut self.ends[at];
        let worth = Worth {
            returns_per_s: least.rate * 1e3,
            late: harm.late(&end.silent(), end.given as f64),
            per_token: harm.per_token(end.of.length.as_f64() - end.given as f64),
            epsilon: harm.epsilon(),
            kappa: harm.kappa(),
            value: least.value,
        };
        let before = end.of.length.saturating_sub(Tokens(end.given));
        // Continue up to the point where the next block is worth as much as the next conversation's.
        let step = (end.of.length.0 / STEPS).max(1);
        let most = end.given + need.0.max(step);
        let worth_second = second / least.rate.max(f64::MIN_POSITIVE);
        end.given = harm.missing_worth(&end.silent(), worth_second, end.given + step, most);
        let trim = Trim {
            conversation: end.of.conversation,
            length: end.of.length,
            end: before,
            keep: end.of.length.saturating_sub(Tokens(end.given)),
            worth,
            what: end.of.what.clone(),
        };
        let value = least.rate * harm.of_return(&end.silent(), end.given as f64);
        for candidate in &mut self.sample {
            if candidate.conversation == trim.conversation {
                candidate.value = value;
            }
        }
        if trim.keep == Tokens::ZERO {
            self.remove(trim.conversation);
        }
        Some(trim)
    }

    /// Returns the candidate of least value, the least value among other conversations, and the first one's index.
    fn least(
        &mut self,
        now: Millis,
        returns: &Returns,
        harm: OnWorker<'_>,
    ) -> Option<(Candidate, f64, usize)> {
        if self.drawn != now {
            self.sample.clear();
        }
        loop {
            if self.sample.is_empty() {
                self.draw(now, returns, harm);
            }
            let least = *self.sample.iter().min_by(|a, b| a.value.total_cmp(&b.value))?;
            let Some(&at) = self.places.get(&least.conversation) else {
                self.sample
                    .retain(|candidate| candidate.conversation != least.conversation);
                continue;
            };
            let others = self
                .sample
                .iter()
                .filter(|candidate| candidate.conversation != least.conversation);
            let second = others.fold(f64::INFINITY, |second, candidate| second.min(candidate.value));
            return Some((least, second, at));
        }
    }

    fn draw(&mut self, now: Millis, returns: &Returns, harm: OnWorker<'_>) {
        self.drawn = now;
        let all = self.ends.len() <= SAMPLE;
        for at in 0..self.ends.len().min(SAMPLE) {
            let at = if all { at } else { self.any() };
            let end = &self.ends[at];
            let rate = end.rate(now, returns);
            self.sample.push(Candidate {
                conversation: end.of.conversation,
                rate,
                value: rate * harm.of_return(&end.silent(), end.given as f64),
            });
        }
    }

    fn any(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % self.ends.len().max(1) as u64) as usize
    }
}
