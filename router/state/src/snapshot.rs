//! Persists what was learned over a restart of the router (docs/evidence.md, "Over a restart of the router").
//!
//! Without a snapshot, a restarted router sends the next turn of every conversation to any worker, which computes the
//! whole history again. One is written on a timer and at the end of a drain, and read at the start, once discovery has
//! found its workers, while requests are already served. Reports and events correct what changed meanwhile.
//!
//! The file is replaced by renaming, so a complete one always exists.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::Snapshot;
use learning::format::{Contents, FormatError, decode, encode};
use policy::units::Millis;
use tracing::{debug, info, warn};

use crate::State;
use fleet::Worker;
use fleet::overrides::AdminState;
use operator::unix_ms;

/// Largest file that is written or read. It suffices for ten thousand workers of a million tokens, at 16 bytes for each
/// key of 256 bytes of text. Text of one byte per token reaches it sooner, which the log reports.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Time limit for reading a file: gigabytes from a slow disk.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for writing a file. A drain waits for it.
const WRITE_LIMIT: Duration = Duration::from_secs(20);

/// Time limit for discovery to find workers before the snapshot is read.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// Reason why a snapshot was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file could not be accessed.
    #[error("the file")]
    Io(#[from] io::Error),
    /// The contents are invalid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The snapshot is too old.
    #[error("{0} s old")]
    Old(u64),
    /// The file is larger than any snapshot.
    #[error("{0} bytes long")]
    Long(u64),
}

/// Restores the last snapshot if `restore` is set, then writes one periodically for as long as the task lives.
pub async fn keep(state: Arc<State>, settings: Snapshot, restore: bool) {
    if restore {
        restore_last(&state, &settings).await;
    }
    loop {
        tokio::time::sleep(settings.interval).await;
        save(&state, &settings).await;
    }
}

async fn restore_last(state: &Arc<State>, settings: &Snapshot) {
    // Only workers that exist are restored.
    let _ = tokio::time::timeout(FOUND_WITHIN, state.discovery.settled()).await;
    let reading = (Arc::clone(state), settings.clone());
    let read = tokio::task::spawn_blocking(move || read(&reading.0, &reading.1)).await;
    match read {
        Ok(Ok(entries)) => info!(path = %settings.path.display(), entries, "snapshot restored"),
        Ok(Err(SnapshotError::Io(error))) if error.kind() == io::ErrorKind::NotFound => {
            debug!(path = %settings.path.display(), "no snapshot yet");
        }
        Ok(Err(error)) => {
            warn!(path = %settings.path.display(), error = %describe(&error), "snapshot ignored");
        }
        Err(error) => warn!(%error, "snapshot ignored"),
    }
}

/// Writes a snapshot and logs a failure.
pub async fn save(state: &Arc<State>, settings: &Snapshot) {
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

/// Encodes what was learned in at most `most` bytes, leaving out residency that does not fit.
pub fn take(state: &State, most: usize) -> Vec<u8> {
    let mut contents = contents(state);
    let mut bytes = encode(&contents);
    while bytes.len() > most
        && let Some((_, entries)) = contents
            .workers
            .iter_mut()
            .rfind(|(_, entries)| !entries.is_empty())
    {
        entries.clear();
        bytes = encode(&contents);
    }
    bytes
}

/// Restores a snapshot of another router. Returns the number of entries. Fails if `bytes` are no snapshot.
pub fn restore(state: &State, bytes: &[u8]) -> Result<usize, SnapshotError> {
    let _alone = state.snapshot.lock();
    Ok(restore_contents(state, &decode(bytes)?))
}

fn contents(state: &State) -> Contents {
    let workers = state.fleet.workers();
    let names: Vec<&str> = workers.iter().map(|worker| name(worker)).collect();
    Contents {
        outcomes: state.feedback.tail.lock().returns().outcomes(state.clock.now()),
        ..state.knowledge.contents(&names, unix_ms())
    }
}

fn restore_contents(state: &State, contents: &Contents) -> usize {
    let workers = state.fleet.workers();
    let names: Vec<&str> = workers.iter().map(|worker| name(worker)).collect();
    let since = Millis(unix_ms().saturating_sub(contents.taken_ms) as f64);
    let taken = state.clock.now() - since;
    state.feedback.tail.lock().restore(taken, &contents.outcomes);
    state.knowledge.restore(contents, &names) + contents.outcomes.len()
}

fn write(state: &State, path: &Path) -> Result<usize, SnapshotError> {
    let _alone = state.snapshot.lock();
    let bytes = encode(&contents(state));
    fits(bytes.len())?;
    // Beside the file, so that renaming stays within one file system.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let (length, beside, to) = (bytes.len(), PathBuf::from(beside), path.to_owned());
    config::file::within(path, WRITE_LIMIT, move || {
        config::file::expect_regular_or_none(&to)?;
        config::file::expect_regular_or_none(&beside)?;
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, &to)
    })?;
    Ok(length)
}

fn fits(bytes: usize) -> Result<(), SnapshotError> {
    match bytes as u64 {
        long if long > MAX_FILE_BYTES => Err(SnapshotError::Long(long)),
        _ => Ok(()),
    }
}

/// Reads and restores the file. Returns the number of entries.
fn read(state: &State, settings: &Snapshot) -> Result<usize, SnapshotError> {
    let _alone = state.snapshot.lock();
    let own = settings.path.clone();
    let length = move || Ok(std::fs::metadata(&own)?.len());
    let length = config::file::within(&settings.path, READ_LIMIT, length)?;
    if length > MAX_FILE_BYTES {
        return Err(SnapshotError::Long(length));
    }
    let bytes = config::file::read_within(&settings.path, MAX_FILE_BYTES, READ_LIMIT)?;
    let contents = decode(&bytes)?;
    let age = unix_ms().saturating_sub(contents.taken_ms) / 1000;
    if age > settings.max_age.as_secs() {
        return Err(SnapshotError::Old(age));
    }
    Ok(restore_contents(state, &contents))
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
