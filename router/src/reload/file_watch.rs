//! Watches files in a dedicated thread, because each check from a task would need a blocking thread and a wake-up.
//! A file system that does not respond blocks only this thread; meanwhile, the caller looks by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use config::file::{Stamp, stamp_blocking};
use tokio::sync::Notify;

const LOOK: Duration = Duration::from_secs(1);
/// Interval at which the caller looks by itself, since the thread may be blocked.
const OWN_LOOK: Duration = Duration::from_secs(30);

/// Files and their metadata; `None` for one that is missing, or whose file system does not respond.
pub(super) type FileStamps = Vec<(PathBuf, Option<Stamp>)>;

/// Watches files. Dropping it ends the thread.
#[derive(Default)]
pub(super) struct FileWatch {
    /// Passes what is known to the thread, once that runs.
    known: Option<SyncSender<FileStamps>>,
    differs: Arc<Notify>,
}

impl FileWatch {
    /// Waits until a file may differ from what is known. Never returns if there are no files.
    pub(super) async fn differs(&mut self, known: &FileStamps) {
        if known.is_empty() {
            return std::future::pending().await;
        }
        if self.known.is_none() {
            self.known = start(Arc::clone(&self.differs));
        }
        if let Some(thread) = &self.known {
            // Fails if the thread is blocked. It compares with an older state then, which at most causes another look.
            let _ = thread.try_send(known.clone());
        }
        let _ = tokio::time::timeout(OWN_LOOK, self.differs.notified()).await;
    }
}

/// Starts the thread. Returns `None` if that is not possible.
fn start(differs: Arc<Notify>) -> Option<SyncSender<FileStamps>> {
    let (sender, known) = sync_channel(1);
    let thread = std::thread::Builder::new().name("file-watch".to_owned());
    let started = thread.spawn(move || look_until_over(&known, &differs));
    started.is_ok().then_some(sender)
}

fn look_until_over(known: &Receiver<FileStamps>, differs: &Notify) {
    let mut files = FileStamps::new();
    loop {
        match known.recv_timeout(LOOK) {
            Ok(known) => files = known,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                if files.iter().any(|(path, stamp)| stamp_blocking(path) != *stamp) {
                    differs.notify_one();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use config::file::stamp;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_change_is_reported_and_the_thread_ends_with_the_watch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let look = || vec![(path.clone(), stamp(&path))];
        std::fs::write(&path, "one").unwrap();
        let (known, mut files) = (look(), FileWatch::default());
        let unchanged = tokio::time::timeout(LOOK * 3, files.differs(&known)).await;
        assert!(unchanged.is_err(), "nothing has changed");
        std::fs::write(&path, "three").unwrap();
        tokio::time::timeout(OWN_LOOK / 2, files.differs(&known))
            .await
            .unwrap();
        let differs = Arc::downgrade(&files.differs);
        drop(files);
        let begun = Instant::now();
        while differs.strong_count() > 0 {
            assert!(begun.elapsed() < LONG, "the thread ends");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocked_thread_is_not_waited_for() {
        let known = vec![(PathBuf::from("/some"), None)];
        let (blocked, _never_received) = sync_channel(1);
        let mut files = FileWatch {
            known: Some(blocked),
            ..FileWatch::default()
        };
        for _ in 0..3 {
            tokio::time::timeout(OWN_LOOK * 2, files.differs(&known))
                .await
                .unwrap();
        }
    }
}
