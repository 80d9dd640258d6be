//! Keeps decisions of operators and learned state in a file, or hands them over to the next process
//! (docs/operating.md, "What survives a restart").
//!
//! Without a snapshot, a restarted router sends the next turn of every conversation to any worker, which computes the
//! whole history again. A snapshot is written on a timer, after decisions, and at the end of a drain. Decisions, costs
//! and habits are restored before requests are served. The rest is restored once discovery has found its workers, while
//! requests are served already. Reports and events correct what changed meanwhile.
//!
//! The file is replaced by renaming, so a complete one always exists.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Snapshot;
use learning::format::{
    Contents, Decoded, EARLY_BYTES, FormatError, MAX_DOCUMENT_BYTES, decode, decode_early, encode,
};
use policy::units::Millis;
use tracing::{debug, info, warn};

use crate::{State, decisions, learned};
use fleet::Worker;
use fleet::overrides::AdminState;
use operator::unix_ms;

/// Largest file that is written or read. It suffices for ten thousand workers of a million tokens, at 16 bytes for each
/// key of 256 bytes of text. Text of one byte per token reaches it sooner, which the log reports.
pub const MAX_FILE_BYTES: usize = 4 << 30;

/// Time limit for reading what is restored before requests are served.
const EARLY_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for reading a file: gigabytes from a slow disk.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for writing a file. A drain waits for it.
const WRITE_LIMIT: Duration = Duration::from_secs(20);

/// Time limit for discovery to find workers before the caches are restored.
const FOUND_WITHIN: Duration = Duration::from_secs(5);
/// Time that holds and costs wait for workers that discovery has not found.
const WAIT_FOR_WORKERS: Duration = Duration::from_secs(600);
/// Time between a decision and the snapshot that has it, in which further decisions are made.
const DECIDED_WITHIN: Duration = Duration::from_secs(1);
/// Least time between two snapshots for decisions, as a multiple of the time that writing one takes.
const PAUSE: u32 = 10;

/// Reason why a snapshot was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file could not be accessed.
    #[error("the file")]
    Io(#[from] io::Error),
    /// The contents are invalid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file is larger than any snapshot.
    #[error("{0} bytes long")]
    Long(u64),
}

/// State left by an earlier process.
#[derive(Debug)]
pub struct SavedState {
    early: Decoded,
    /// The whole snapshot, if another process has handed it over; otherwise it is in the file.
    handed: Option<Vec<u8>>,
}

/// Returns the state left by an earlier process: `handed` over, or else in the configured file, if there is one.
pub async fn find(settings: Option<Snapshot>, handed: Option<Vec<u8>>) -> Option<SavedState> {
    let found = tokio::task::spawn_blocking(move || match (handed, settings) {
        (Some(bytes), _) => ("the predecessor process".to_owned(), early(bytes, true)),
        (None, Some(settings)) => {
            let start = config::file::read_start(&settings.path, EARLY_BYTES, EARLY_LIMIT);
            let kept = start
                .map_err(SnapshotError::from)
                .and_then(|start| early(start, false));
            (settings.path.display().to_string(), kept)
        }
        (None, None) => (
            String::new(),
            Err(SnapshotError::Io(io::ErrorKind::NotFound.into())),
        ),
    });
    match found.await {
        Ok((_, Ok(kept))) => Some(kept),
        Ok((from, Err(SnapshotError::Io(error)))) if error.kind() == io::ErrorKind::NotFound => {
            debug!(from, "no snapshot yet");
            None
        }
        Ok((from, Err(error))) => {
            warn!(from, error = %describe(&error), "snapshot ignored");
            None
        }
        Err(error) => {
            warn!(%error, "snapshot ignored");
            None
        }
    }
}

fn early(bytes: Vec<u8>, is_whole: bool) -> Result<SavedState, SnapshotError> {
    Ok(SavedState {
        early: decode_early(&bytes)?,
        handed: is_whole.then_some(bytes),
    })
}

/// Restores what the first request needs: decisions, the audit log, costs and habits.
pub async fn restore_early(state: &State, kept: &SavedState) {
    let Decoded { contents, left_out } = &kept.early;
    for part in left_out {
        warn!(part, "a part of the snapshot is not restored");
    }
    if !contents.audit.is_empty() {
        match state.operations.operator.audit.restore(&contents.audit) {
            Ok(entries) => debug!(entries, "audit log restored"),
            Err(error) => warn!(error, "audit log not restored"),
        }
    }
    if !contents.decisions.is_empty()
        && let Some(happened) = decisions::restore(state, &contents.decisions)
    {
        state.operations.operator.audit.record(happened).await;
    }
    if !contents.learned.is_empty() {
        let restored = learned::restore(state, &contents.learned, contents.taken_ms);
        info!(restored, "costs and habits restored");
    }
}

/// Restores the rest of an earlier process's state, then writes snapshots if they are configured. Does not return.
pub async fn keep(state: Arc<State>, settings: Option<Snapshot>, kept: Option<SavedState>) {
    if let Some(kept) = kept {
        restore_rest(&state, settings.as_ref(), kept).await;
    }
    let until_found = async {
        if state.config.discovery.is_on() {
            tokio::time::sleep(WAIT_FOR_WORKERS).await;
        }
        state.drop_pending();
        std::future::pending::<()>().await;
    };
    let writing = async {
        let Some(settings) = settings else {
            return std::future::pending().await;
        };
        let mut took = Duration::ZERO;
        loop {
            tokio::select! {
                () = tokio::time::sleep(settings.interval) => {}
                () = state.operations.operator.audit.changed() => {
                    tokio::time::sleep(DECIDED_WITHIN.max(PAUSE * took).min(settings.interval)).await;
                }
            }
            let begun = Instant::now();
            save(&state, &settings).await;
            took = begun.elapsed();
        }
    };
    tokio::join!(until_found, writing);
}

async fn restore_rest(state: &Arc<State>, settings: Option<&Snapshot>, kept: SavedState) {
    // Only workers that exist are restored.
    let _ = tokio::time::timeout(FOUND_WITHIN, state.operations.discovery.settled()).await;
    let (of, settings) = (Arc::clone(state), settings.cloned());
    let read = tokio::task::spawn_blocking(move || read(&of, settings.as_ref(), kept)).await;
    match read {
        Ok(Ok(entries)) => info!(entries, "snapshot restored"),
        Ok(Err(error)) => warn!(error = %describe(&error), "snapshot ignored"),
        Err(error) => warn!(%error, "snapshot ignored"),
    }
}

/// Writes a snapshot and logs a failure. A process that has handed its state over writes none.
pub async fn save(state: &Arc<State>, settings: &Snapshot) {
    if state.operations.is_handed_over() {
        return;
    }
    let (state, settings) = (Arc::clone(state), settings.clone());
    let written = tokio::task::spawn_blocking(move || {
        let bytes = write(&state, &settings.path);
        (bytes, settings)
    })
    .await;
    match written {
        Ok((Ok(bytes), settings)) => debug!(path = %settings.path.display(), bytes, "snapshot written"),
        Ok((Err(error), settings)) => {
            warn!(path = %settings.path.display(), error = %describe(&error), "cannot write the snapshot");
        }
        Err(error) => warn!(%error, "cannot write the snapshot"),
    }
}

/// Encodes what another replica can use: caches and models, and no decisions. Leaves out workers' cached prefixes to
/// fit into `most` bytes; the rest may be longer.
pub fn take(state: &State, most: usize) -> Vec<u8> {
    fitting(caches(state), most)
}

/// Encodes everything that the next process can use. Leaves out workers' cached prefixes to fit into `most` bytes; the
/// rest may be longer.
pub fn take_all(state: &State, most: usize) -> Vec<u8> {
    let document = |name: &'static str, document: Vec<u8>| {
        if document.len() > MAX_DOCUMENT_BYTES {
            warn!(
                part = name,
                bytes = document.len(),
                "too large for a snapshot: it will be lost at the end of this process"
            );
        }
        document
    };
    let now = state.routing.clock.now();
    let contents = Contents {
        decisions: document("decisions", decisions::taken(state)),
        audit: state.operations.operator.audit.snapshot(MAX_DOCUMENT_BYTES),
        learned: document("costs and habits", learned::taken(state)),
        conversations: state.routing.feedback.conversations.lock().kept(now),
        ..caches(state)
    };
    fitting(contents, most)
}

/// Encodes contents without the cached prefixes of as many workers as it takes to fit into `most` bytes.
fn fitting(mut contents: Contents, most: usize) -> Vec<u8> {
    let mut bytes = encode(&contents);
    let mut left_out = 0;
    while bytes.len() > most
        && let Some((_, entries)) = contents
            .workers
            .iter_mut()
            .rfind(|(_, entries)| !entries.is_empty())
    {
        entries.clear();
        left_out += 1;
        bytes = encode(&contents);
    }
    if left_out > 0 {
        warn!(
            workers = left_out,
            most, "the snapshot has no cached prefixes of some workers: it would be too long"
        );
    }
    bytes
}

/// Restores a snapshot of another router: caches and models, and no decisions. Returns the number of entries. Fails if
/// `bytes` are no snapshot.
pub fn restore(state: &State, bytes: &[u8]) -> Result<usize, SnapshotError> {
    let _alone = state.operations.snapshot.lock();
    Ok(restore_caches(state, &decode(bytes)?.contents))
}

fn caches(state: &State) -> Contents {
    let workers = state.routing.fleet.workers();
    let names: Vec<&str> = workers.iter().map(|worker| name(worker)).collect();
    Contents {
        outcomes: state
            .routing
            .feedback
            .tail
            .lock()
            .returns()
            .outcomes(state.routing.clock.now()),
        ..state.routing.knowledge.contents(&names, unix_ms())
    }
}

fn restore_caches(state: &State, contents: &Contents) -> usize {
    let workers = state.routing.fleet.workers();
    let names: Vec<&str> = workers.iter().map(|worker| name(worker)).collect();
    let taken = state.routing.clock.now() - age(contents);
    state
        .routing
        .feedback
        .tail
        .lock()
        .restore(taken, &contents.outcomes);
    let unknown = contents
        .workers
        .iter()
        .filter(|(name, entries)| !entries.is_empty() && !names.contains(&name.as_str()));
    let unknown: Vec<&str> = unknown.map(|(name, _)| name.as_str()).take(20).collect();
    if !unknown.is_empty() {
        info!(
            workers = unknown.join(", "),
            "cached prefixes dropped: these workers are unknown"
        );
    }
    state.routing.knowledge.restore(contents, &names) + contents.outcomes.len()
}

fn age(contents: &Contents) -> Millis {
    Millis(unix_ms().saturating_sub(contents.taken_ms) as f64)
}

fn write(state: &State, path: &Path) -> Result<usize, SnapshotError> {
    let _alone = state.operations.snapshot.lock();
    let bytes = take_all(state, MAX_FILE_BYTES);
    let length = bytes.len();
    if length > MAX_FILE_BYTES {
        return Err(SnapshotError::Long(length as u64));
    }
    config::file::replace_private(path, bytes, WRITE_LIMIT)?;
    Ok(length)
}

/// Reads and restores the rest of an earlier process's state. Returns the number of entries.
fn read(state: &State, settings: Option<&Snapshot>, kept: SavedState) -> Result<usize, SnapshotError> {
    let _alone = state.operations.snapshot.lock();
    let (bytes, is_file) = match (kept.handed, settings) {
        (Some(bytes), _) => (bytes, false),
        (None, Some(settings)) => (whole_file(&settings.path)?, true),
        (None, None) => return Ok(0),
    };
    let Decoded {
        mut contents,
        left_out,
    } = decode(&bytes)?;
    drop(bytes);
    for part in left_out.iter().filter(|part| !kept.early.left_out.contains(part)) {
        warn!(part, "a part of the snapshot is not restored");
    }
    let age_ms = age(&contents);
    let max_age = settings
        .filter(|_| is_file)
        .map_or(Duration::MAX, |settings| settings.max_age);
    if age_ms.0 > max_age.as_millis() as f64 {
        info!(
            age_s = (age_ms.0 / 1e3).round(),
            max_age_s = max_age.as_secs(),
            "cached prefixes dropped: older than index.snapshot_max_age_s, so the caches have changed"
        );
        (contents.workers, contents.places) = Default::default();
        (contents.last_workers, contents.prompts) = Default::default();
    }
    let now = state.routing.clock.now();
    let conversations =
        state
            .routing
            .feedback
            .conversations
            .lock()
            .restore(now, age_ms, &contents.conversations);
    Ok(restore_caches(state, &contents) + conversations)
}

fn whole_file(path: &Path) -> Result<Vec<u8>, SnapshotError> {
    let own = path.to_owned();
    let length = config::file::within(path, READ_LIMIT, move || Ok(std::fs::metadata(&own)?.len()))?;
    if length > MAX_FILE_BYTES as u64 {
        return Err(SnapshotError::Long(length));
    }
    Ok(config::file::read_within(
        path,
        MAX_FILE_BYTES as u64,
        READ_LIMIT,
    )?)
}

/// Returns the worker's name, by which it is matched; empty for a removed worker.
fn name(worker: &Worker) -> &str {
    match worker.admin_state() {
        AdminState::Gone => "",
        _ => worker.name(),
    }
}

/// Returns the error and its cause on one line.
fn describe(error: &SnapshotError) -> String {
    match error {
        SnapshotError::Io(cause) => format!("{error}: {cause}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
