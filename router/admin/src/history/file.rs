use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, warn};

use super::Past;

/// Largest file that is read. A day of 64 workers is some 5 MB.
const MAX_BYTES: u64 = 16 << 20;
const LIMIT: Duration = Duration::from_secs(10);

fn beside(snapshot: &Path) -> PathBuf {
    let mut path = snapshot.as_os_str().to_owned();
    path.push(".history");
    path.into()
}

/// Reads the history of an earlier process; `None` if there is none, or it cannot be read.
pub(super) fn read(snapshot: &Path) -> Option<Past> {
    let path = beside(snapshot);
    if !path.exists() {
        return None;
    }
    let bytes = config::file::read_within(&path, MAX_BYTES, LIMIT);
    let bytes = bytes.inspect_err(|error| warn!(path = %path.display(), %error, "cannot read the history"));
    let past = serde_json::from_slice(&bytes.ok()?);
    past.inspect_err(|error| warn!(path = %path.display(), %error, "history ignored"))
        .ok()
}

pub(super) fn write(snapshot: &Path, past: &Past) {
    let path = beside(snapshot);
    let Ok(bytes) = serde_json::to_vec(past) else {
        return;
    };
    let (mut new, to) = (path.as_os_str().to_owned(), path.clone());
    new.push(".new");
    let new = PathBuf::from(new);
    let written = config::file::within(&path, LIMIT, move || {
        config::file::expect_regular_or_none(&to)?;
        config::file::expect_regular_or_none(&new)?;
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&bytes)?;
        std::fs::rename(&new, &to)
    });
    match written {
        Ok(()) => debug!(path = %path.display(), "history written"),
        Err(error) => warn!(path = %path.display(), %error, "cannot write the history"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written_and_a_broken_one_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("tailroute.snapshot");
        assert!(read(&snapshot).is_none());
        let past = Past {
            samples: vec![Sample {
                at_unix_ms: 7,
                ..Sample::default()
            }],
            marks: Vec::new(),
        };
        write(&snapshot, &past);
        assert_eq!(read(&snapshot).unwrap().samples, past.samples);
        std::fs::write(beside(&snapshot), "{").unwrap();
        assert!(read(&snapshot).is_none());
    }

    #[test]
    fn a_history_without_counters_of_workers_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("tailroute.snapshot");
        let sample = r#"{"at_unix_ms": 7, "ttft": {}, "turns": {}, "causes": {}, "requests": {}, "prompt": {}, "waiting": 0,
            "policy_revision": 1, "workers": {"a": {"ready": true, "in_flight": 2, "wait_ms": 1.5, "utilisation": 0.5}}}"#;
        std::fs::write(
            beside(&snapshot),
            format!(r#"{{"samples": [{sample}], "marks": []}}"#),
        )
        .unwrap();
        let past = read(&snapshot).unwrap();
        let load = &past.samples[0].workers["a"];
        assert_eq!((load.in_flight, &load.counters), (2, &None));
    }
}
