use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use config::{Config, Overrides};
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use policy::cache::{Entry, Piece};
use policy::ids::{PrefixHash, WorkerId};
use policy::units::Tokens;

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
    /// Collects the log of this thread until the guard is dropped.
    fn begin(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(self.clone())
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

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

fn entry() -> Entry {
    Entry {
        piece: Piece {
            hash: PrefixHash(3),
            tokens: 64,
        },
        parent: None,
    }
}

/// A snapshot with a cached prefix of the worker, and a model.
fn contents(taken_ms: u64) -> Contents {
    Contents {
        taken_ms,
        workers: vec![("127.0.0.1:9".to_owned(), vec![entry()])],
        models: vec![("llama".to_owned(), 0.5, 3)],
        ..Contents::default()
    }
}

#[tokio::test(start_paused = true)]
async fn each_file_that_cannot_be_used_is_ignored_with_one_line_that_says_why() {
    let (_folder, path) = folder();
    let (_, settings) = configured(&path, HOUR);
    let now = encode(&contents(unix_ms()));
    let changed = |at: usize, byte: u8| {
        let mut bytes = now.clone();
        bytes[at] ^= byte;
        bytes
    };
    let cases = [
        ("damaged", changed(20, 1)),
        ("damaged", now[..9].to_vec()),
        ("of the format, expected", changed(8, 1)),
        ("not a snapshot", b"something else".to_vec()),
        ("not a snapshot", Vec::new()),
    ];
    for (why, bytes) in cases {
        std::fs::write(&path, bytes).unwrap();
        let log = Log::default();
        let _guard = log.begin();
        assert!(find(Some(settings.clone()), None).await.is_none());
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains("snapshot ignored") && lines[0].contains(why),
            "{why}: {lines:?}"
        );
        assert!(lines[0].contains("WARN"), "{lines:?}");
    }
    std::fs::remove_file(&path).unwrap();
    let log = Log::default();
    let _guard = log.begin();
    assert!(find(Some(settings), None).await.is_none() && find(None, None).await.is_none());
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}

/// Restores these contents from the file, or as handed over. Returns the restored state and the log.
async fn restored(contents: &Contents, handed: bool) -> (Arc<State>, Vec<String>) {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, HOUR);
    let state = State::new(config).unwrap();
    let log = Log::default();
    let _guard = log.begin();
    let bytes = encode(contents);
    std::fs::write(&path, if handed { &b"other"[..] } else { &bytes[..] }).unwrap();
    let kept = find(Some(settings.clone()), handed.then_some(bytes))
        .await
        .unwrap();
    restore_early(&state, &kept).await;
    read(&state, Some(&settings), kept).unwrap();
    (state, log.lines())
}

#[tokio::test]
async fn caches_beyond_their_age_are_dropped_and_the_rest_is_restored() {
    let held = |state: &State| {
        state.routing.knowledge.contents(&["127.0.0.1:9"], 0).workers[0]
            .1
            .len()
    };
    let old = unix_ms() - 700_000;
    for (taken_ms, handed, cached) in [(unix_ms(), false, 1), (old, false, 0), (old, true, 1)] {
        let (state, lines) = restored(&contents(taken_ms), handed).await;
        assert_eq!(held(&state), cached, "{lines:?}");
        assert_eq!(
            state.routing.knowledge.contents(&[], 0).models,
            [("llama".to_owned(), 0.5, 3)]
        );
        let says_so = lines
            .iter()
            .any(|line| line.contains("older than index.snapshot_max_age_s"));
        assert_eq!(says_so, cached == 0, "{lines:?}");
    }
}

#[tokio::test]
async fn caches_of_unknown_workers_are_named() {
    let mut contents = contents(unix_ms());
    contents.workers[0].0 = "gone".to_owned();
    let (_, lines) = restored(&contents, false).await;
    assert!(
        lines
            .iter()
            .any(|line| line.contains("unknown") && line.contains("gone")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn learned_costs_predict_as_before_and_those_of_unknown_workers_are_named() {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, HOUR);
    let before = State::new(config.clone()).unwrap();
    for at in 0..150_u64 {
        let size = policy::estimate::PrefillSize::of(Tokens(500 + at * 71 % 3_000), Tokens(at * 37 % 900));
        let took = Millis(4.0 + 0.276 * size.uncached);
        let sample = learning::feedback::PrefillSample::Engine(took);
        let now = before.routing.clock.now();
        before
            .routing
            .feedback
            .costs
            .lock()
            .observe(now, WorkerId(0), size, sample);
    }
    before.routing.publish_costs();
    let alpha = |state: &State| state.routing.fleet.workers()[0].cost().alpha_ms_per_token;
    assert!((alpha(&before) / 0.276 - 1.0).abs() < 0.05);
    write(&before, &path).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let after = State::new(config.clone()).unwrap();
    assert_ne!(alpha(&after), alpha(&before));
    let kept = find(Some(settings.clone()), None).await.unwrap();
    restore_early(&after, &kept).await;
    assert!(
        (alpha(&after) / alpha(&before) - 1.0).abs() < 0.01,
        "before any request"
    );
    let answers = |state: &State| {
        state
            .routing
            .feedback
            .costs
            .lock()
            .state(WorkerId(0))
            .unwrap()
            .answers
    };
    assert_eq!(answers(&after), 150);
    // Another configured cost is decided anew, and another address is another machine.
    let mut changed = config.clone();
    changed.workers[0].cost_is_known = true;
    let mut moved = config.clone();
    moved.workers[0].url = "http://127.0.0.1:10".parse().unwrap();
    let mut renamed = config;
    renamed.workers[0].name = "other".to_owned();
    for (config, why) in [
        (changed, "cost has changed"),
        (moved, "another address"),
        (renamed, "no source"),
    ] {
        let log = Log::default();
        let _guard = log.begin();
        let after = State::new(config).unwrap();
        restore_early(&after, &kept).await;
        after.drop_pending();
        assert_eq!(answers(&after), 0);
        assert!(
            log.lines().iter().any(|line| line.contains(why)),
            "{why}: {:?}",
            log.lines()
        );
    }
}

#[tokio::test]
async fn a_part_that_is_damaged_is_named_and_the_rest_restored() {
    let (_folder, path) = folder();
    let (config, _) = configured(&path, HOUR);
    let whole = Contents {
        decisions: br#"{"removed":["127.0.0.1:9"],"workers":7}"#.to_vec(),
        audit: b"no log".to_vec(),
        learned: br#"{"habits":[],"tail":null,"workers":{"127.0.0.1:9":{}},"prompt":"x"}"#.to_vec(),
        ..contents(unix_ms())
    };
    let log = Log::default();
    let _guard = log.begin();
    let state = State::new(config).unwrap();
    let mut bytes = encode(&whole);
    let at = bytes.windows(5).position(|found| found == b"llama").unwrap();
    bytes[at] ^= 1;
    let kept = find(None, Some(bytes)).await.unwrap();
    restore_early(&state, &kept).await;
    read(&state, None, kept).unwrap();
    let lines = log.lines();
    for named in [
        "audit log not restored",
        "workers",
        "habits",
        "127.0.0.1:9",
        "models (damaged)",
    ] {
        assert!(
            lines.iter().any(|line| line.contains(named)),
            "{named}: {lines:?}"
        );
    }
    assert_eq!(
        state.routing.knowledge.contents(&["127.0.0.1:9"], 0).workers[0]
            .1
            .len(),
        1
    );
}

#[test]
fn another_replica_gets_and_gives_no_decisions() {
    let (_folder, path) = folder();
    let (config, _) = configured(&path, HOUR);
    let state = State::new(config).unwrap();
    state.routing.fleet.workers()[0].set_admin_state(AdminState::Cordoned);
    let given = decode(&take(&state, MAX_FILE_BYTES)).unwrap().contents;
    assert!(given.decisions.is_empty() && given.audit.is_empty() && given.learned.is_empty());
    let all = take_all(&state, MAX_FILE_BYTES);
    assert!(!decode(&all).unwrap().contents.decisions.is_empty());
    let (config, _) = configured(&path, HOUR);
    let other = State::new(config).unwrap();
    restore(&other, &all).unwrap();
    assert_eq!(other.routing.fleet.workers()[0].admin_state(), AdminState::None);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_written_whenever_its_time_has_come() {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, HOUR);
    let state = State::new(config).unwrap();
    let keeping = tokio::spawn(keep(Arc::clone(&state), Some(settings), None));
    for turn in 1..=3_u64 {
        state.routing.knowledge.counted(
            &format!("model-{turn}"),
            1000,
            &[],
            &learning::knowledge::Scale::exact(),
            policy::units::Tokens(300),
        );
        // Paused time advances only while all tasks wait, and it does not wait for a blocking write.
        written(&path, |contents| contents.models.len() as u64 == turn, 60).await;
    }
    keeping.abort();
}

/// Waits until the file has contents for which `holds`, and checks it every `every_s` seconds.
async fn written(path: &Path, holds: impl Fn(&Contents) -> bool, every_s: u64) {
    let written = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_secs(every_s)).await;
            let decoded = std::fs::read(path).ok().and_then(|bytes| decode(&bytes).ok());
            if decoded.is_some_and(|decoded| holds(&decoded.contents)) {
                return;
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "the write is on another thread, which paused time does not wait for"
            )]
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    tokio::time::timeout(100 * HOUR, written)
        .await
        .expect("it is written");
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_written_at_once_and_a_process_that_has_handed_over_writes_nothing() {
    let (_folder, path) = folder();
    let (config, settings) = configured(&path, 24 * HOUR);
    let state = State::new(config).unwrap();
    let keeping = tokio::spawn(keep(Arc::clone(&state), Some(settings.clone()), None));
    let begun = tokio::time::Instant::now();
    state.routing.fleet.workers()[0].set_admin_state(AdminState::Cordoned);
    let happened = operator::audit::AuditRecord {
        who: operator::audit::Author::router(),
        action: "workers.cordon".to_owned(),
        target: "a".to_owned(),
        why: None,
        outcome: Ok((None, None)),
    };
    state.operations.operator.audit.record(happened).await;
    let is_cordoned = |contents: &Contents| String::from_utf8_lossy(&contents.decisions).contains("cordoned");
    written(&path, is_cordoned, 1).await;
    assert!(begun.elapsed() < 20 * HOUR, "it is not the interval's");
    keeping.abort();
    std::fs::remove_file(&path).unwrap();
    state.operations.set_handed_over(true);
    save(&state, &settings).await;
    assert!(!path.exists());
    state.operations.set_handed_over(false);
    save(&state, &settings).await;
    assert!(path.exists());
}

#[test]
fn a_file_longer_than_any_snapshot_is_neither_written_nor_read() {
    let (_folder, path) = folder();
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(MAX_FILE_BYTES as u64 + 1).unwrap();
    assert!(matches!(whole_file(&path), Err(SnapshotError::Long(_))));
    // Residency that does not fit is left out, and the rest is kept.
    let whole = contents(1);
    let most = encode(&whole).len() - 1;
    let fitting = decode(&fitting(whole, most)).unwrap().contents;
    assert!(fitting.workers[0].1.is_empty() && fitting.models.len() == 1);
}
