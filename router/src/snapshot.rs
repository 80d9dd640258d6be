//! What was learned, over a restart of the router.
//!
//! A router that starts knowing nothing sends the next turn of every conversation anywhere, and each of them computes its
//! whole history again: the restart of a small process in front costs the fleet a full cache. So what lives where is
//! written down on a timer and at the end of a drain, and read when the router starts (and has found its workers, where they
//! are not written down), beside the requests: nothing waits for it. The workers' caches move on meanwhile, so an old snapshot is not read, and what a read one says wrongly
//! is corrected as any wrong belief is, by reports and events; a worker whose replayed events tell that its cache was
//! emptied since then is not restored at all.
//!
//! Which blocks of a worker are whose text is not written down. A worker that publishes events is asked for them again,
//! and one turn binds a conversation's text to its blocks; until then the mirror speaks, whose text is in the snapshot.
//!
//! The file is replaced by renaming, so there is always a whole one; one that is damaged, foreign or old costs a line in
//! the log.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Snapshot;
use learning::format::{Contents, FormatError, decode, encode};
use policy::units::Millis;
use tracing::{debug, info, warn};

use crate::app::App;
use fleet::Worker;
use fleet::hold::Hold;

/// Largest file that is written or read. Conversations, places and models are bounded to some 8 MB, and a worker's cache
/// adds 16 bytes for each of its keys, one per 256 bytes of text at the most: this is enough for ten thousand workers of a million
/// tokens. Keys are never more than tokens; whoever fills a cache with text of a byte per token fills a snapshot sooner, and
/// the log says that it is too long.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// For a file to be read: gigabytes, off a slow disk.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// For a file to be written. A drain waits for it.
const WRITE_LIMIT: Duration = Duration::from_secs(20);

/// For workers to be found that were not written down, before it is read.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

/// Why a snapshot was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file.
    #[error("the file")]
    Io(#[from] io::Error),
    /// What is in it.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is older than is useful.
    #[error("{0} s old")]
    Old(u64),
    /// It is larger than any snapshot.
    #[error("{0} bytes long")]
    Long(u64),
}

/// Restores the last snapshot if it is to, then writes one again and again, for as long as the task lives.
pub async fn keep(app: Arc<App>, settings: Snapshot, restore: bool) {
    if restore {
        restore_last(&app, &settings).await;
    }
    loop {
        tokio::time::sleep(settings.interval).await;
        save(&app, &settings).await;
    }
}

async fn restore_last(app: &Arc<App>, settings: &Snapshot) {
    // It is restored to workers that are there.
    let _ = tokio::time::timeout(FOUND_WITHIN, app.discovery.settled()).await;
    let reading = (Arc::clone(app), settings.clone());
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

/// Writes a snapshot; a failure is logged.
pub async fn save(app: &Arc<App>, settings: &Snapshot) {
    let (app, settings) = (Arc::clone(app), settings.clone());
    let written = tokio::task::spawn_blocking(move || {
        let bytes = write(&app, &settings.path);
        (bytes, settings)
    })
    .await;
    match written {
        Ok((Ok(bytes), settings)) => debug!(path = %settings.path.display(), bytes, "snapshot written"),
        Ok((Err(error), settings)) => {
            warn!(path = %settings.path.display(), error = %describe(&error), "snapshot not written");
        }
        Err(error) => warn!(%error, "snapshot not written"),
    }
}

/// What is known here, in at most so many bytes: what would be too much of workers' caches is left out.
pub fn take(app: &App, most: usize) -> Vec<u8> {
    let mut contents = contents(app);
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

/// Takes up what another router has taken. Returns how many entries were brought back.
///
/// # Errors
/// If it is no snapshot.
pub fn restore(app: &App, bytes: &[u8]) -> Result<usize, SnapshotError> {
    let _alone = app.snapshot.lock();
    Ok(restore_contents(app, &decode(bytes)?))
}

fn contents(app: &App) -> Contents {
    let workers = app.fleet.workers();
    let names: Vec<&str> = workers.iter().map(|worker| name(worker)).collect();
    Contents {
        outcomes: app.feedback.tail.lock().returns().outcomes(app.clock.now()),
        ..app.knowledge.contents(&names, now_ms())
    }
}

fn restore_contents(app: &App, contents: &Contents) -> usize {
    let workers = app.fleet.workers();
    let names: Vec<&str> = workers.iter().map(|worker| name(worker)).collect();
    let since = Millis(now_ms().saturating_sub(contents.taken_ms) as f64);
    let taken = app.clock.now() - since;
    app.feedback.tail.lock().restore(taken, &contents.outcomes);
    app.knowledge.restore(contents, &names) + contents.outcomes.len()
}

fn write(app: &App, path: &Path) -> Result<usize, SnapshotError> {
    let _alone = app.snapshot.lock();
    let bytes = encode(&contents(app));
    fits(bytes.len())?;
    // Beside the file, so that the renaming stays within one file system.
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

/// Returns how many entries were brought back.
fn read(app: &App, settings: &Snapshot) -> Result<usize, SnapshotError> {
    let _alone = app.snapshot.lock();
    let own = settings.path.clone();
    let length = move || Ok(std::fs::metadata(&own)?.len());
    let length = config::file::within(&settings.path, READ_LIMIT, length)?;
    if length > MAX_FILE_BYTES {
        return Err(SnapshotError::Long(length));
    }
    let bytes = config::file::read_within(&settings.path, MAX_FILE_BYTES, READ_LIMIT)?;
    let contents = decode(&bytes)?;
    let age = now_ms().saturating_sub(contents.taken_ms) / 1000;
    if age > settings.max_age.as_secs() {
        return Err(SnapshotError::Old(age));
    }
    Ok(restore_contents(app, &contents))
}

/// A worker's name, by which it is found again; of one that has left it is none.
fn name(worker: &Worker) -> &str {
    match worker.hold() {
        Hold::Gone => "",
        _ => worker.name(),
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// The error with what caused it, on one line.
fn describe(error: &SnapshotError) -> String {
    match error {
        SnapshotError::Io(cause) => format!("{error}: {cause}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
