//! File access while the process serves: regular files only, bounded in size and in time.
//!
//! Opening a named pipe blocks until another process opens its other end, a device can be read without end, and a file
//! system whose server is gone does not answer. So calls run on another thread, for which the caller waits a limited
//! time. A path whose thread was abandoned is refused until the thread ends: a stalled path costs one thread.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, SendError, SyncSender};
use std::time::Duration;

use parking_lot::Mutex;

/// Time limit for reading a file of the configuration.
pub const READ_LIMIT: Duration = Duration::from_secs(5);
/// Largest number of stuck paths. Each holds a thread.
const MOST_STUCK: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// Channel to the idle thread, if any. It saves starting a thread per access: files of discovery are checked twice a
/// second.
static SPARE: Mutex<Option<SyncSender<Job>>> = Mutex::new(None);

/// Paths whose thread was abandoned and has not ended.
static STUCK: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Reads a regular file. Fails for anything else, after [`READ_LIMIT`], and for more than `most` bytes
/// (`FileTooLarge`).
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_within(path, most, READ_LIMIT)
}

/// Like [`read`], for a text file. Fails also if the file is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Like [`read`], with another time limit.
pub fn read_within(path: &Path, most: u64, limit: Duration) -> io::Result<Vec<u8>> {
    let own = path.to_owned();
    within(path, limit, move || {
        expect_regular(&own)?;
        let file = File::open(&own)?;
        let mut bytes = Vec::new();
        // Bounded while reading, since a file can grow meanwhile.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            let what = format!("longer than {most} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        Ok(bytes)
    })
}

/// Reads at most the first `most` bytes of a regular file. Fails for anything else, and after `limit`.
pub fn read_start(path: &Path, most: usize, limit: Duration) -> io::Result<Vec<u8>> {
    let own = path.to_owned();
    within(path, limit, move || {
        expect_regular(&own)?;
        let mut bytes = Vec::new();
        File::open(&own)?.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Replaces a file by renaming, so that the path always leads to a complete one. Only its owner can read it. Fails
/// after `limit`.
pub fn replace_private(path: &Path, bytes: Vec<u8>, limit: Duration) -> io::Result<()> {
    // Beside the file, so that renaming stays within one file system.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let (to, beside) = (path.to_owned(), PathBuf::from(beside));
    within(path, limit, move || {
        expect_regular_or_none(&to)?;
        expect_regular_or_none(&beside)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&beside)?;
        // A file that was left behind keeps its mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, &to)
    })
}

/// State of a file: device, inode, time of modification in seconds and nanoseconds, and length in bytes. It changes
/// when the file is written or replaced.
pub type Stamp = (u64, u64, i64, i64, u64);

/// Returns the state of the file at this path, following links; `None` if there is none, or the file system does not
/// respond within [`READ_LIMIT`].
pub fn stamp(path: &Path) -> Option<Stamp> {
    let own = path.to_owned();
    within(path, READ_LIMIT, move || std::fs::metadata(own))
        .ok()
        .map(|found| stamp_of(&found))
}

/// Like [`stamp`], but waits for as long as the file system takes: for threads that may block.
pub fn stamp_blocking(path: &Path) -> Option<Stamp> {
    std::fs::metadata(path).ok().map(|found| stamp_of(&found))
}

fn stamp_of(found: &Metadata) -> Stamp {
    (
        found.dev(),
        found.ino(),
        found.mtime(),
        found.mtime_nsec(),
        found.size(),
    )
}

/// Fails if the path does not exist, or leads to a named pipe, a device, a socket or a directory.
pub fn expect_regular(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_file() {
        Ok(())
    } else {
        let what = "not a regular file: pipes, devices and folders are not read or written";
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}

/// Fails if the path leads to anything but a regular file. A path without a file is accepted.
pub fn expect_regular_or_none(path: &Path) -> io::Result<()> {
    match expect_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        found => found,
    }
}

/// Runs blocking work with a file on another thread, and waits for it for at most `limit`. Fails with the error of the
/// work; with `TimedOut` if it takes longer, in which case it continues in the background; with `ResourceBusy` if
/// earlier work with the same path was abandoned and has not ended, or too many other paths are stuck.
pub fn within<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    {
        let stuck = STUCK.lock();
        if stuck.contains(path) || stuck.len() >= MOST_STUCK {
            let what = "an earlier access is still blocked: its file system does not respond";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
    }
    let (done, outcome) = mpsc::sync_channel(1);
    let own = path.to_owned();
    let run = move || {
        let worked = catch_unwind(AssertUnwindSafe(work));
        let worked = worked.unwrap_or_else(|_| Err(io::Error::other("the access panicked")));
        let mut stuck = STUCK.lock();
        stuck.remove(&own);
        // The channel has room. Under the lock, an abandoning caller either receives the result or is in the set.
        let _ = done.try_send(worked);
    };
    start(Box::new(run))?;
    match outcome.recv_timeout(limit) {
        Ok(worked) => worked,
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the access ended without a result")),
        Err(RecvTimeoutError::Timeout) => {
            let mut stuck = STUCK.lock();
            outcome.try_recv().unwrap_or_else(|_| {
                stuck.insert(path.to_owned());
                let what = format!(
                    "timed out after {} s: its file system does not respond",
                    limit.as_secs_f64()
                );
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            })
        }
    }
}

fn start(job: Job) -> io::Result<()> {
    let spare = SPARE.lock().take();
    let job = match spare {
        None => job,
        Some(spare) => match spare.send(job) {
            Ok(()) => return Ok(()),
            Err(SendError(job)) => job,
        },
    };
    let (hand_in, jobs) = mpsc::sync_channel(1);
    let work = move || {
        let mut next = Some(job);
        while let Some(job) = next {
            job();
            {
                let mut spare = SPARE.lock();
                if spare.is_some() {
                    // One idle thread is enough.
                    return;
                }
                *spare = Some(hand_in.clone());
            }
            next = jobs.recv().ok();
        }
    };
    std::thread::Builder::new().name("file".to_owned()).spawn(work)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn kind<T: std::fmt::Debug>(read: io::Result<T>) -> io::ErrorKind {
        read.unwrap_err().kind()
    }

    #[test]
    fn a_regular_file_is_read_up_to_its_bound_through_links_too() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&path, "four").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read(&link, 4).unwrap(), b"four");
        assert_eq!(kind(read(&link, 3)), io::ErrorKind::FileTooLarge);
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(kind(read_text(&path, 4)), io::ErrorKind::InvalidData);
        assert_eq!(
            kind(read(&folder.path().join("none"), 4)),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_replaced_file_is_whole_and_private_whatever_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let (path, beside) = (folder.path().join("file"), folder.path().join("file.new"));
        for left in [&path, &beside] {
            std::fs::write(left, "something longer").unwrap();
            std::fs::set_permissions(left, Permissions::from_mode(0o644)).unwrap();
        }
        replace_private(&path, b"new".to_vec(), LONG).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(!beside.exists());
        assert_eq!(read_start(&path, 2, LONG).unwrap(), b"ne");
        assert_eq!(
            kind(replace_private(folder.path(), Vec::new(), LONG)),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn pipes_devices_and_folders_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let begun = Instant::now();
        for path in [&*pipe, Path::new("/dev/zero"), folder.path()] {
            assert_eq!(
                kind(read(path, 4)),
                io::ErrorKind::InvalidInput,
                "{}",
                path.display()
            );
        }
        assert!(begun.elapsed() < READ_LIMIT);
    }

    #[test]
    fn what_hangs_is_given_up_and_refused_until_it_ends() {
        let path = Path::new("/a/file/system/that/hangs");
        let (free, held) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = held.recv();
            Ok(())
        };
        assert_eq!(kind(within(path, SHORT, hangs)), io::ErrorKind::TimedOut);
        assert_eq!(kind(within(path, LONG, || Ok(()))), io::ErrorKind::ResourceBusy);
        assert_eq!(within(Path::new("/another"), LONG, || Ok(1)).unwrap(), 1);
        drop(free);
        let begun = Instant::now();
        while within(path, LONG, || Ok(())).is_err() {
            assert!(begun.elapsed() < LONG, "it has ended");
            std::thread::yield_now();
        }
    }

    #[test]
    fn accesses_one_after_another_share_a_thread() {
        let mut threads = HashSet::new();
        let begun = Instant::now();
        for _ in 0..1_000 {
            threads.insert(within(Path::new("/some"), LONG, || Ok(std::thread::current().id())).unwrap());
            while SPARE.lock().is_none() {
                assert!(begun.elapsed() < LONG, "a thread waits for the next");
                std::thread::yield_now();
            }
        }
        // Other tests use threads too.
        assert!(threads.len() < 500, "{}", threads.len());
    }

    #[test]
    fn an_access_that_panics_is_an_error_and_leaves_nothing_behind() {
        let path = Path::new("/panics");
        assert_eq!(
            kind(within::<()>(path, LONG, || panic!("on purpose"))),
            io::ErrorKind::Other
        );
        within(path, LONG, || Ok(())).unwrap();
    }
}
