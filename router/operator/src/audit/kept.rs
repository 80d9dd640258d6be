//! Saves the audit log's entries in memory for the next process, and restores them.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Audit, ChangeOutcome, Entry, NewestEntries};

/// Highest number from which numbering continues.
const HIGHEST_NUMBER: u64 = 1 << 53;

#[derive(Serialize)]
struct AuditSnapshot<'a> {
    next: u64,
    entries: Vec<&'a Entry>,
}

#[derive(Deserialize)]
struct RestoredSnapshot {
    next: u64,
    entries: Vec<Entry>,
}

impl Audit {
    /// Returns the newest entries and the next number as JSON of at most `most` bytes; without room for entries, the next
    /// number alone.
    #[must_use]
    pub fn snapshot(&self, most: usize) -> Vec<u8> {
        let (next, mut entries) = {
            let recent = self.recent.lock();
            let both = recent.applied.entries.iter().chain(&recent.refused.entries);
            (recent.next, both.cloned().collect::<Vec<_>>())
        };
        entries.sort_unstable_by_key(|(entry, _)| std::cmp::Reverse(entry.number));
        // Each entry is followed by a comma, and 64 bytes are enough for the rest.
        let mut room = most.saturating_sub(64);
        let fitting = entries.iter().take_while(|(_, bytes)| {
            let fits = *bytes < room;
            room = room.saturating_sub(bytes + 1);
            fits
        });
        let mut entries: Vec<&Entry> = fitting.map(|(entry, _)| &**entry).collect();
        entries.reverse();
        serde_json::to_vec(&AuditSnapshot { next, entries }).unwrap_or_default()
    }

    /// Restores the entries of another process before those of this one, which are numbered after them. Returns the
    /// number of restored entries. Fails and changes nothing if `bytes` are no audit log.
    pub fn restore(&self, bytes: &[u8]) -> Result<usize, String> {
        let read: RestoredSnapshot = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let newest = read.entries.iter().map(|entry| entry.number).max();
        let next = newest.map_or(read.next, |newest| read.next.max(newest.saturating_add(1)));
        if next > HIGHEST_NUMBER {
            return Err(format!("its next number is {next}"));
        }
        let count = read.entries.len();
        let mut recent = self.recent.lock();
        let own: [VecDeque<(Arc<Entry>, usize)>; 2] = [
            std::mem::take(&mut recent.applied).entries,
            std::mem::take(&mut recent.refused).entries,
        ];
        let push = |to: &mut [NewestEntries; 2], entry: Arc<Entry>| {
            let bytes = serde_json::to_vec(&*entry).map_or(0, |text| text.len());
            match entry.outcome {
                ChangeOutcome::Applied => to[0].push(entry, bytes),
                ChangeOutcome::Refused => to[1].push(entry, bytes),
            }
        };
        let mut both = [NewestEntries::default(), NewestEntries::default()];
        for entry in read.entries {
            push(&mut both, Arc::new(entry));
        }
        for (entry, _) in own.into_iter().flatten() {
            let number = next.saturating_add(entry.number);
            push(
                &mut both,
                Arc::new(Entry {
                    number,
                    ..(*entry).clone()
                }),
            );
        }
        recent.next = recent.next.saturating_add(next);
        let [applied, refused] = both;
        (recent.applied, recent.refused) = (applied, refused);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AuditRecord, Author};
    use super::*;

    fn happened(why: &str, refused: bool) -> AuditRecord {
        let outcome = if refused {
            Err("403".to_owned())
        } else {
            Ok((None, Some("x".into())))
        };
        AuditRecord {
            who: Author::router(),
            action: "workers.cordon".to_owned(),
            target: "a".to_owned(),
            why: Some(why.to_owned()),
            outcome,
        }
    }

    async fn log(entries: usize) -> Audit {
        let audit = Audit::in_memory();
        for at in 0..entries {
            audit
                .record(happened(&at.to_string(), at % 3 == 2 && at < 100))
                .await;
        }
        audit
    }

    #[tokio::test]
    async fn numbers_continue_after_a_restart() {
        let before = log(7).await;
        let after = log(2).await;
        assert_eq!(after.restore(&before.snapshot(1 << 20)), Ok(7));
        after.record(happened("next", false)).await;
        let newest = after.newest(usize::MAX);
        let numbers: Vec<u64> = newest.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        let old = newest[3..].iter().zip(before.newest(usize::MAX));
        assert!(old.into_iter().all(|(one, other)| **one == *other));
    }

    #[tokio::test]
    async fn a_kept_log_is_bounded_and_has_the_newest_entries() {
        let audit = log(300).await;
        let bytes = audit.snapshot(4_000);
        assert!(bytes.len() <= 4_000);
        let after = Audit::in_memory();
        assert!(after.restore(&bytes).unwrap() > 5);
        assert_eq!(after.newest(1)[0].number, 299);
        assert_eq!(
            Audit::in_memory().restore(&audit.snapshot(0)),
            Ok(0),
            "the number alone"
        );
    }

    #[tokio::test]
    async fn bytes_that_are_no_log_change_nothing() {
        let audit = log(2).await;
        for wrong in [
            &b""[..],
            b"{}",
            b"[]",
            br#"{"next":-1,"entries":[]}"#,
            br#"{"next":18446744073709551615,"entries":[]}"#,
        ] {
            assert!(audit.restore(wrong).is_err());
        }
        assert_eq!(audit.newest(9).len(), 2);
    }
}
