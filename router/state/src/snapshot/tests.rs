use std::path::PathBuf;

use config::{Config, Overrides};
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use super::*;

/// Collects log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock();
        String::from_utf8_lossy(&bytes)
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

fn configured(path: &Path, interval: std::time::Duration) -> (Config, Snapshot) {
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".to_owned()),
        admin: Some("127.0.0.1:0".to_owned()),
        workers: vec!["http://127.0.0.1:9".to_owned()],
        policy: None,
    };
    let mut config = config::load_file(None, std::collections::BTreeMap::new(), overrides).unwrap();
    let snapshot = Snapshot {
        path: path.to_owned(),
        interval,
        max_age: std::time::Duration::from_secs(600),
    };
    config.index.snapshot = Some(snapshot.clone());
    (config, snapshot)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    (folder, path)
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn each_file_that_cannot_be_used_is_ignored_with_one_line_that_says_why() {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, HOUR);
    let now = encode(&Contents {
        taken_ms: unix_ms(),
        ..Contents::default()
    });
    let changed = |at: usize, byte: u8| {
        let mut bytes = now.clone();
        bytes[at] ^= byte;
        bytes
    };
    let old = encode(&Contents {
        taken_ms: unix_ms() - 700_000,
        ..Contents::default()
    });
    let cases = [
        ("damaged", changed(20, 1)),
        ("damaged", now[..now.len() / 2].to_vec()),
        ("damaged", now[..9].to_vec()),
        ("of the format, expected", changed(8, 1)),
        ("not a snapshot", b"something else".to_vec()),
        ("not a snapshot", Vec::new()),
        ("s old", old),
    ];
    for (why, bytes) in cases {
        std::fs::write(&path, bytes).unwrap();
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(log.clone())
            .with_ansi(false)
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let state = State::new(config.clone()).unwrap();
        let keeping = tokio::spawn(keep(state, settings.clone(), true));
        while log.lines().is_empty() {
            tokio::task::yield_now().await;
        }
        keeping.abort();
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains("snapshot ignored") && lines[0].contains(why),
            "{why}: {lines:?}"
        );
        assert!(lines[0].contains("WARN"), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_written_whenever_its_time_has_come() {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, HOUR);
    let state = State::new(config).unwrap();
    let keeping = tokio::spawn(keep(Arc::clone(&state), settings, true));
    for turn in 1..=3_u64 {
        state.knowledge.counted(
            &format!("model-{turn}"),
            1000,
            &[],
            &learning::knowledge::Scale::exact(),
            policy::units::Tokens(300),
        );
        // Paused time advances only while all tasks wait, and it does not wait for a blocking write.
        let written = async {
            loop {
                tokio::time::sleep(std::time::Duration::from_secs(60)).await;
                let models = std::fs::read(&path).ok().and_then(|bytes| decode(&bytes).ok());
                if models.is_some_and(|contents| contents.models.len() as u64 == turn) {
                    return;
                }
            }
        };
        tokio::time::timeout(100 * HOUR, written)
            .await
            .expect("it is written");
    }
    keeping.abort();
}

#[test]
fn what_is_longer_than_any_snapshot_is_neither_written_nor_read() {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, HOUR);
    let state = State::new(config).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(MAX_FILE_BYTES + 1).unwrap();
    assert!(matches!(read(&state, &settings), Err(SnapshotError::Long(_))));
    let error = fits(MAX_FILE_BYTES as usize + 1).unwrap_err();
    assert!(matches!(error, SnapshotError::Long(_)));
}
