//! Retention: the older a sample, the coarser.

use std::collections::VecDeque;

use super::{Mark, Past, Sample};

const MINUTE_MS: u64 = 60_000;
/// Pairs of an age and the least distance of samples up to that age, both in milliseconds. Older samples are dropped.
const RETENTION: [(u64, u64); 3] = [
    (15 * MINUTE_MS, 0),
    (180 * MINUTE_MS, MINUTE_MS),
    (24 * 60 * MINUTE_MS, 5 * MINUTE_MS),
];
const MOST_MARKS: usize = 1_000;

/// Samples and marks, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Kept {
    samples: VecDeque<Sample>,
    marks: VecDeque<Mark>,
}

impl Kept {
    pub(super) fn past(&self) -> Past {
        Past {
            samples: self.samples.iter().cloned().collect(),
            marks: self.marks.iter().cloned().collect(),
        }
    }

    pub(super) fn first_since(&self, unix_ms: u64) -> Option<&Sample> {
        let at = self.samples.partition_point(|sample| sample.at_unix_ms < unix_ms);
        self.samples.get(at)
    }

    /// Adds a sample, and drops those that are too old or too close together for their age.
    pub(super) fn push(&mut self, sample: Sample) {
        let now = sample.at_unix_ms;
        self.samples.push_back(sample);
        let mut last: Option<u64> = None;
        self.samples.retain(|sample| {
            let age = now.saturating_sub(sample.at_unix_ms);
            let Some((_, distance)) = RETENTION.into_iter().find(|(until, _)| age <= *until) else {
                return false;
            };
            let stays = last.is_none_or(|last| sample.at_unix_ms.saturating_sub(last) >= distance);
            if stays {
                last = Some(sample.at_unix_ms);
            }
            stays
        });
        let oldest = now.saturating_sub(RETENTION[2].0);
        while self.marks.front().is_some_and(|mark| mark.at_unix_ms < oldest) {
            self.marks.pop_front();
        }
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        if self.marks.len() == MOST_MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    /// Puts the samples and marks of an earlier process before those of this one.
    pub(super) fn restore(&mut self, past: Past) {
        let most = (RETENTION[2].0 / MINUTE_MS) as usize;
        for sample in past.samples.into_iter().rev().take(most) {
            self.samples.push_front(sample);
        }
        for mark in past.marks.into_iter().rev().take(MOST_MARKS) {
            self.marks.push_front(mark);
        }
        self.marks.truncate(MOST_MARKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_unix_ms: u64) -> Sample {
        Sample {
            at_unix_ms,
            ..Sample::default()
        }
    }

    #[test]
    fn a_day_of_samples_gets_coarser_with_age_and_stays_bounded() {
        let mut kept = Kept::default();
        let start = 1_700_000_000_000;
        let days = 2;
        for tick in 0..days * 24 * 360 {
            kept.push(at(start + tick * 10_000));
        }
        let samples = kept.past().samples;
        assert!(samples.len() < 600, "{}", samples.len());
        let now = samples.last().unwrap().at_unix_ms;
        assert!(now - samples[0].at_unix_ms > 23 * 60 * MINUTE_MS);
        for pair in samples.windows(2) {
            let (gap, age) = (pair[1].at_unix_ms - pair[0].at_unix_ms, now - pair[0].at_unix_ms);
            let most = match age {
                age if age <= 15 * MINUTE_MS => 10_000,
                age if age <= 180 * MINUTE_MS => 2 * MINUTE_MS,
                _ => 10 * MINUTE_MS,
            };
            assert!(gap <= most, "{gap} ms at an age of {age} ms");
        }
    }

    #[test]
    fn an_earlier_process_comes_first() {
        let mut kept = Kept::default();
        kept.push(at(2_000_000));
        kept.restore(Past {
            samples: vec![at(1_000_000), at(1_100_000)],
            marks: Vec::new(),
        });
        let times: Vec<_> = kept
            .past()
            .samples
            .iter()
            .map(|sample| sample.at_unix_ms)
            .collect();
        assert_eq!(times, [1_000_000, 1_100_000, 2_000_000]);
    }

    #[test]
    fn marks_are_bounded() {
        let mut kept = Kept::default();
        for at_unix_ms in 0..2_000 {
            kept.mark(Mark {
                at_unix_ms,
                kind: "worker".to_owned(),
                subject: String::new(),
                text: String::new(),
            });
        }
        assert_eq!(kept.past().marks.len(), MOST_MARKS);
        assert_eq!(kept.past().marks[0].at_unix_ms, 1_000);
    }
}
