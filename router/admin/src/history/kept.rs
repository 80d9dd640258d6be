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
/// Age up to which samples keep the counters of single workers: three times the longest window that the console shows.
const OF_WORKERS_MS: u64 = 15 * MINUTE_MS;
const MOST_MARKS: usize = 1_000;

/// Samples and marks, the oldest first.
#[derive(Debug, Default)]
pub(super) struct HistoryStore {
    samples: VecDeque<Sample>,
    marks: VecDeque<Mark>,
}

impl HistoryStore {
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
        self.samples.retain_mut(|sample| {
            let age = now.saturating_sub(sample.at_unix_ms);
            let Some((_, distance)) = RETENTION.into_iter().find(|(until, _)| age <= *until) else {
                return false;
            };
            let stays = last.is_none_or(|last| sample.at_unix_ms.saturating_sub(last) >= distance);
            if stays {
                last = Some(sample.at_unix_ms);
            }
            if age > OF_WORKERS_MS {
                sample.workers.values_mut().for_each(|load| load.counters = None);
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
    use super::super::{Counters, Load};
    use super::*;

    fn at(at_unix_ms: u64) -> Sample {
        Sample {
            at_unix_ms,
            ..Sample::default()
        }
    }

    #[test]
    fn a_day_of_samples_gets_coarser_with_age_and_stays_bounded() {
        let mut kept = HistoryStore::default();
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

    /// A sample of a fleet of 64 whose names and numbers are long.
    fn large(at_unix_ms: u64) -> Sample {
        let load = Load {
            ready: true,
            in_flight: 1_000,
            wait_ms: 12_345.67,
            utilisation: 0.9876,
            counters: Some(Box::new(Counters {
                turns: 10_000_000,
                failures: 100_000,
                prompt: 100_000_000_000,
                predicted_cached: 10_000_000_000,
                reported_cached: 10_000_000_000,
                ttft: vec![10_000_000; 17],
            })),
        };
        let name = |worker| format!("vllm-llama-3-70b-decode-6f7c9d8b5c-{worker:05}");
        Sample {
            workers: (0..64).map(|worker| (name(worker), load.clone())).collect(),
            ..at(at_unix_ms)
        }
    }

    #[test]
    fn counters_of_workers_are_kept_for_a_quarter_of_an_hour() {
        let mut kept = HistoryStore::default();
        for tick in 0..200 {
            kept.push(large(tick * 10_000));
        }
        let past = kept.past();
        let now = past.samples.last().unwrap().at_unix_ms;
        let with = |sample: &&Sample| sample.workers.values().any(|load| load.counters.is_some());
        let ages: Vec<_> = past
            .samples
            .iter()
            .filter(with)
            .map(|sample| now - sample.at_unix_ms)
            .collect();
        assert_eq!((ages.len(), ages[0]), (91, OF_WORKERS_MS));
    }

    #[test]
    fn a_day_of_the_largest_samples_is_a_few_mib() {
        let mut kept = HistoryStore::default();
        // As retention leaves them: coarse ones first.
        let coarse = (0..252).map(|at| at * 5 * MINUTE_MS);
        let medium = (1_260..1_425).map(|at| at * MINUTE_MS);
        let fine = (8_550..8_640).map(|at| at * 10_000);
        for at_unix_ms in coarse.chain(medium).chain(fine) {
            kept.push(large(at_unix_ms));
        }
        let past = kept.past();
        assert!(past.samples.len() > 480, "{}", past.samples.len());
        let bytes = serde_json::to_vec(&past).unwrap().len();
        assert!(bytes < 6 << 20, "{bytes} bytes");
    }

    #[test]
    fn an_earlier_process_comes_first() {
        let mut kept = HistoryStore::default();
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
        let mut kept = HistoryStore::default();
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
