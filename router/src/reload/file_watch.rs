//! Watches files from a thread of its own.
//!
//! A look at the files from a task takes a blocking thread, a thread per file and a wakeup of the runtime. This thread
//! makes the same system calls itself, so a look at unchanged files is one wakeup. A file system that does not answer
//! blocks only this thread; meanwhile, the caller looks by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::file::{READ_LIMIT, Stamp, stamp_blocking};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// Interval of looks at unchanged files.
const LOOK: Duration = Duration::from_secs(1);

/// Files and their metadata; `None` for one that is missing, or whose file system does not answer.
pub(super) type Looked = Vec<(PathBuf, Option<Stamp>)>;

/// Watches files. Dropping it ends the thread.
#[derive(Default)]
pub(super) struct FileWatch {
    shared: Option<Arc<Shared>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    over: Condvar,
    differs: Notify,
}

#[derive(Default)]
struct State {
    known: Arc<Looked>,
    /// Start of the current look.
    looking_since: Option<Instant>,
    is_over: bool,
}

impl FileWatch {
    /// Waits until a file may differ from what is known. Never returns if there are no files.
    pub(super) async fn differs(&mut self, known: &Looked) {
        if known.is_empty() {
            return std::future::pending().await;
        }
        let Some(shared) = self.start(known) else {
            // Without the thread, the caller looks each time.
            return tokio::time::sleep(LOOK).await;
        };
        loop {
            let told = tokio::time::timeout(READ_LIMIT, shared.differs.notified()).await;
            if told.is_ok() {
                return;
            }
            if shared.is_stuck() {
                return tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Has the thread compare with `known`. Returns `None` if there is no thread, or it is stuck.
    fn start(&mut self, known: &Looked) -> Option<Arc<Shared>> {
        if let Some(shared) = &self.shared {
            shared.state.lock().known = Arc::new(known.clone());
            return (!shared.is_stuck()).then(|| Arc::clone(shared));
        }
        let shared = Arc::new(Shared::default());
        shared.state.lock().known = Arc::new(known.clone());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("file-watch".to_owned());
        thread.spawn(move || of_thread.look_until_over()).ok()?;
        self.shared = Some(Arc::clone(&shared));
        Some(shared)
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.state.lock().is_over = true;
            shared.over.notify_one();
        }
    }
}

impl Shared {
    fn is_stuck(&self) -> bool {
        let since = self.state.lock().looking_since;
        since.is_some_and(|since| since.elapsed() >= READ_LIMIT)
    }

    fn look_until_over(&self) {
        let mut state = self.state.lock();
        loop {
            if !state.is_over {
                self.over.wait_for(&mut state, LOOK);
            }
            if state.is_over {
                return;
            }
            let known = Arc::clone(&state.known);
            state.looking_since = Some(Instant::now());
            drop(state);
            let differs = known.iter().any(|(path, stamp)| stamp_blocking(path) != *stamp);
            if differs {
                self.differs.notify_one();
            }
            state = self.state.lock();
            state.looking_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
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
        tokio::time::timeout(LONG, files.differs(&known)).await.unwrap();
        let shared = Arc::downgrade(files.shared.as_ref().unwrap());
        drop(files);
        let begun = Instant::now();
        while shared.strong_count() > 0 {
            assert!(begun.elapsed() < LONG, "the thread ends");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_stuck_thread_is_not_waited_for() {
        let known = vec![(PathBuf::from("/some"), None)];
        let shared = Arc::new(Shared::default());
        shared.state.lock().looking_since = Instant::now().checked_sub(READ_LIMIT);
        let mut files = FileWatch { shared: Some(shared) };
        tokio::time::timeout(LONG, files.differs(&known)).await.unwrap();
    }
}
