//! Audit log of changes and of refused requests for changes (docs/admin.md, "Audit changes").
//!
//! With a configured file, a separate thread writes each entry before the response is sent: a confirmed change is in
//! the file. A full disk does not block a change, since a change is often the way to recover. A caller without
//! permission can cause refusals at will, so they are kept apart from changes, with [a bound for each name](refusals).
//!
//! An entry gets its number and its place in the queue of its file under one lock, and one thread at a time writes the
//! queue. So the lines of a file are in the order of their numbers.

mod file;
mod kept;
mod queue;
mod refusals;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use tracing::{error, info};

use self::file::AuditFile;
use self::queue::{Queue, Queued};
use self::refusals::Refusals;
use super::revisions::Revision;

/// Time limit for writing an entry; the response waits for it.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Changes kept in memory, and as many refusals.
const ENTRIES: usize = 1_000;
/// Bytes of each kept in memory, by the size of their JSON.
const BYTES: usize = 4 << 20;

/// A change that was made or refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Number of the entry. A restart with a snapshot and a hand-over continue it.
    pub number: u64,
    /// Time in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Caller that requested the change.
    pub who: Author,
    /// Operation: its name in the OpenAPI document, `config.reload`, `policy.revert`, or `policy.adopt` for a policy
    /// change made by another replica.
    pub action: String,
    /// Target of the operation: the name of a worker or key; otherwise its subject, such as `policy` or `config`.
    pub target: String,
    /// Whether the change was applied or refused.
    pub outcome: ChangeOutcome,
    /// Reason given by the caller; `null` without one.
    pub why: Option<String>,
    /// State before the change; `null` if the change was refused or there was none.
    pub before: Option<Value>,
    /// State after the change; `null` if the change was refused.
    pub after: Option<Value>,
    /// Reason of the refusal; `null` if the change was applied.
    pub refused: Option<String>,
    /// Number of earlier refused requests of the same caller that were omitted because there were too many; absent if
    /// 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(default)]
    pub left_out: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Caller that requested a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Author {
    /// Name of the token; `loopback` where there are no tokens; `router` for actions of the router itself.
    pub name: String,
    /// Role of the token; `null` for the router itself.
    pub role: Option<config::Role>,
    /// Address of the client; `null` if there is none.
    pub address: Option<String>,
}

impl Author {
    /// Returns the identity of the router itself.
    pub fn router() -> Self {
        Self {
            name: "router".to_owned(),
            role: None,
            address: None,
        }
    }
}

/// Outcome of a requested change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOutcome {
    /// The change is in force.
    Applied,
    /// Nothing changed.
    Refused,
}

/// A change or refusal before it has a number and a time.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    pub who: Author,
    pub action: String,
    pub target: String,
    /// Reason given by the caller; `null` without one.
    pub why: Option<String>,
    /// State before and after the change, or the reason of the refusal.
    pub outcome: Result<(Option<Value>, Option<Value>), String>,
}

impl AuditRecord {
    /// Returns a change of the policy by the router itself.
    pub fn by_router(action: &str, before: &Revision, after: &Revision) -> Self {
        Self {
            who: Author::router(),
            action: action.to_owned(),
            target: "policy".to_owned(),
            why: after.reason.clone(),
            outcome: Ok((
                serde_json::to_value(before).ok(),
                serde_json::to_value(after).ok(),
            )),
        }
    }
}

/// Audit log: the newest entries in memory and, if configured, all in files.
#[derive(Debug)]
pub struct Audit {
    recent: Mutex<RecentEntries>,
    files: Option<Files>,
    failures: AtomicU64,
    changed: Notify,
}

#[derive(Debug)]
struct Files {
    applied: File,
    refused: File,
}

#[derive(Clone, Debug)]
struct File {
    path: PathBuf,
    lines: Arc<Mutex<AuditFile>>,
    queue: Arc<Queue>,
}

impl File {
    fn open(path: PathBuf, max_bytes: u64) -> io::Result<Self> {
        let own = path.clone();
        let lines = config::file::within(&path, WRITE_LIMIT, move || AuditFile::open(&own, max_bytes))?;
        Ok(Self {
            path,
            lines: Arc::new(Mutex::new(lines)),
            queue: Arc::default(),
        })
    }

    /// Writes the queue up to this line. A write beyond the time limit is abandoned, and further ones fail until the
    /// disk responds.
    fn write(self, queued: &Queued) -> io::Result<()> {
        let (lines, queue, own) = (Arc::clone(&self.lines), Arc::clone(&self.queue), queued.clone());
        let written = config::file::within(&self.path, WRITE_LIMIT, move || {
            let mut lines = lines.lock();
            queue.drain(&own, |line| lines.write(line));
            Ok(())
        });
        match written {
            Ok(()) => queued.outcome(),
            Err(error) => {
                self.queue.give_up(queued);
                Err(error)
            }
        }
    }
}

#[derive(Debug, Default)]
struct RecentEntries {
    applied: NewestEntries,
    refused: NewestEntries,
    refusals: Refusals,
    left_out: u64,
    next: u64,
}

#[derive(Debug, Default)]
struct NewestEntries {
    entries: VecDeque<(Arc<Entry>, usize)>,
    bytes: usize,
}

impl NewestEntries {
    fn push(&mut self, entry: Arc<Entry>, bytes: usize) {
        self.entries.push_back((entry, bytes));
        self.bytes += bytes;
        while self.entries.len() > ENTRIES || (self.bytes > BYTES && self.entries.len() > 1) {
            if let Some((_, bytes)) = self.entries.pop_front() {
                self.bytes -= bytes;
            }
        }
    }
}

/// An entry in memory, and its queued line if there is a file.
type RecordedEntry = (Arc<Entry>, Option<(File, Queued)>);

impl Audit {
    /// Creates a log that is kept in memory only.
    pub fn in_memory() -> Self {
        Self {
            recent: Mutex::default(),
            files: None,
            failures: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    /// Creates a log that appends to a file, with refusals in `FILE.refused`. Fails if a file cannot be opened.
    pub fn to_file(path: &Path, max_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            files: Some(Files {
                applied: File::open(path.to_owned(), max_bytes)?,
                refused: File::open(file::beside(path, "refused"), max_bytes)?,
            }),
            ..Self::in_memory()
        })
    }

    /// Records an entry, unless it exceeds the bound on refusals. Returns after it is in the file, if there is one.
    pub async fn record(&self, happened: AuditRecord) {
        let Some((entry, queued)) = self.keep(happened) else {
            return;
        };
        let Some((file, queued)) = queued else {
            return;
        };
        let written = tokio::task::spawn_blocking(move || file.write(&queued)).await;
        let failed = match written {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        error!(
            error = failed,
            number = entry.number,
            "cannot write the audit log"
        );
    }

    /// Numbers an entry, keeps it in memory and queues it for its file, if there is one. Returns `None` if it exceeds
    /// the bound on refusals.
    fn keep(&self, happened: AuditRecord) -> Option<RecordedEntry> {
        let at_unix_ms = super::unix_ms();
        let (outcome, before, after, refused) = match happened.outcome {
            Ok((before, after)) => (ChangeOutcome::Applied, before, after, None),
            Err(why) => (ChangeOutcome::Refused, None, None, Some(why)),
        };
        let mut recent = self.recent.lock();
        let left_out = match outcome {
            ChangeOutcome::Applied => Some(0),
            ChangeOutcome::Refused => recent.refusals.admit(&happened.who.name, at_unix_ms),
        };
        let Some(left_out) = left_out else {
            recent.left_out += 1;
            return None;
        };
        let entry = Arc::new(Entry {
            number: recent.next,
            at_unix_ms,
            who: happened.who,
            action: happened.action,
            target: happened.target,
            outcome,
            why: happened.why,
            before,
            after,
            refused,
            left_out,
        });
        recent.next += 1;
        let text = serde_json::to_string(&*entry).unwrap_or_default();
        let (kind, file) = match outcome {
            ChangeOutcome::Applied => (
                &mut recent.applied,
                self.files.as_ref().map(|files| &files.applied),
            ),
            ChangeOutcome::Refused => (
                &mut recent.refused,
                self.files.as_ref().map(|files| &files.refused),
            ),
        };
        kind.push(Arc::clone(&entry), text.len());
        let queued = file.map(|file| (file.clone(), file.queue.add(text + "\n")));
        drop(recent);
        if outcome == ChangeOutcome::Applied {
            self.changed.notify_one();
        }
        info!(
            who = entry.who.name,
            action = entry.action,
            target = entry.target,
            outcome = ?entry.outcome,
            why = entry.why,
            refused = entry.refused,
            left_out = entry.left_out,
            "administration"
        );
        Some((entry, queued))
    }

    /// Returns the newest `count` changes and refusals in memory, newest first.
    pub fn newest(&self, count: usize) -> Vec<Arc<Entry>> {
        let recent = self.recent.lock();
        let both = [&recent.applied, &recent.refused];
        let newest = both.map(|kind| kind.entries.iter().rev().take(count));
        let mut newest: Vec<_> = newest
            .into_iter()
            .flatten()
            .map(|(entry, _)| Arc::clone(entry))
            .collect();
        drop(recent);
        newest.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.number));
        newest.truncate(count);
        newest
    }

    /// Waits until a change was made. One waiter at a time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the number of refusals omitted because of the bound per name.
    pub fn left_out(&self) -> u64 {
        self.recent.lock().left_out
    }

    /// Returns the number of entries that could not be written to the file.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(why: &str) -> AuditRecord {
        AuditRecord {
            who: Author::router(),
            action: "policy.put".to_owned(),
            target: "policy".to_owned(),
            why: Some(why.to_owned()),
            outcome: Ok((None, None)),
        }
    }

    #[tokio::test]
    async fn memory_holds_the_newest_within_its_bounds() {
        let audit = Audit::in_memory();
        for at in 0..ENTRIES + 5 {
            audit.record(happened(&at.to_string())).await;
        }
        let newest = audit.newest(usize::MAX);
        assert_eq!(newest.len(), ENTRIES);
        assert_eq!(newest[0].number, ENTRIES as u64 + 4);
        let long = "x".repeat(BYTES / 4);
        for _ in 0..8 {
            audit.record(happened(&long)).await;
        }
        assert!(
            audit.newest(usize::MAX).len() < 8,
            "{}",
            audit.newest(usize::MAX).len()
        );
    }

    #[tokio::test]
    async fn the_file_goes_on_where_it_ended_and_a_full_one_is_kept_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for why in ["a", "b", "c"] {
            // A new process each time. Two lines fit in the file.
            Audit::to_file(&path, 500).unwrap().record(happened(why)).await;
        }
        let whys = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap();
            let entry = |line: &str| serde_json::from_str::<Value>(line).unwrap();
            text.lines()
                .map(|line| entry(line)["why"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(whys(&path), ["c"]);
        assert_eq!(whys(&folder.path().join("audit.jsonl.1")), ["a", "b"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn numbers_are_in_the_order_of_the_lines_when_many_record_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Arc::new(Audit::to_file(&path, 1 << 20).unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..300 {
            let audit = Arc::clone(&audit);
            tasks.spawn(async move {
                audit.record(happened(&at.to_string())).await;
                let file =
                    std::fs::read_to_string(audit.files.as_ref().unwrap().applied.path.clone()).unwrap();
                let why = format!("\"why\":\"{at}\"");
                assert!(file.contains(&why), "{at} is in the file when its record returns");
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let numbers: Vec<u64> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["number"]
                    .as_u64()
                    .unwrap()
            })
            .collect();
        assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn refusals_push_out_no_change_in_memory_or_on_disk_and_those_left_out_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        // The smallest bound: each further line begins a new file.
        let audit = Audit::to_file(&path, 1).unwrap();
        audit.record(happened("the change")).await;
        let refused = |who: &str| AuditRecord {
            who: Author {
                name: who.to_owned(),
                ..Author::router()
            },
            outcome: Err("403".to_owned()),
            ..happened("why not")
        };
        for _ in 0..ENTRIES + 5 {
            audit.record(refused("reader")).await;
        }
        audit.record(refused("another")).await;
        let newest = audit.newest(usize::MAX);
        let last = newest.last().unwrap();
        assert_eq!(
            (last.why.as_deref(), last.outcome),
            (Some("the change"), ChangeOutcome::Applied)
        );
        assert_eq!(newest[0].who.name, "another");
        assert!(newest.windows(2).all(|pair| pair[0].number > pair[1].number));
        // On a slow machine the allowance may refill meanwhile and admit a few more.
        let of_reader = newest.iter().filter(|entry| entry.who.name == "reader").count() as u64;
        assert!(of_reader >= refusals::AT_ONCE, "{of_reader}");
        let told: u64 = newest.iter().map(|entry| entry.left_out).sum();
        assert!(told <= audit.left_out());
        assert_eq!(of_reader + audit.left_out(), ENTRIES as u64 + 5);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("the change"), "{text}");
        let text = std::fs::read_to_string(folder.path().join("audit.jsonl.refused")).unwrap();
        assert!(text.contains("another"), "{text}");
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_counted_and_kept_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::to_file(&path, 1).unwrap();
        audit.record(happened("a")).await;
        // The next entry needs a new file, but the folder is gone.
        std::fs::remove_dir_all(folder.path()).unwrap();
        audit.record(happened("b")).await;
        assert_eq!((audit.failures(), audit.newest(9).len()), (1, 2));
    }
}
