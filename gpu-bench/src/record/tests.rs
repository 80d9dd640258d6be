use policy::units::{Millis, Tokens};

use super::*;
use crate::sample::Clock;

fn head() -> Head {
    Head {
        version: VERSION,
        place: "http://h:1".to_owned(),
        facts: Facts {
            model: "m".to_owned(),
            ..Facts::default()
        },
        grid: Grid {
            cached_tokens: vec![0],
            uncached_tokens: vec![8, 16],
            seed: 1,
        },
        began_at_unix_s: 1,
    }
}

fn measured(uncached: u64) -> Measured {
    Measured {
        cell: Cell {
            cached_tokens: 0,
            uncached_tokens: uncached,
            pass: 0,
        },
        sample: Sample {
            cached: Tokens(0),
            uncached: Tokens(uncached),
            prefill: Millis(1.5),
            clock: Clock::Client,
            flops: None,
            bytes: None,
        },
    }
}

#[test]
fn an_interrupted_measurement_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("gpu-0.json");
    let mut record = Record::open(&out, head(), Unfinished::Keep).unwrap();
    record.add(measured(8)).unwrap();
    let part = record.part().to_owned();
    drop(record);
    // Simulates a process killed in the middle of a line.
    let cut = fs::read_to_string(&part).unwrap() + "{\"cell\":{\"cached_to";
    fs::write(&part, cut).unwrap();
    let mut record = Record::open(&out, head(), Unfinished::Resume).unwrap();
    assert!(record.has(&measured(8).cell) && !record.has(&measured(16).cell));
    record.add(measured(16)).unwrap();
    let whole = record.complete().unwrap();
    assert_eq!(whole, folder.path().join("gpu-0.samples.jsonl"));
    assert_eq!(read(&whole).unwrap(), (head(), vec![measured(8), measured(16)]));
    assert!(!part.exists());
}

#[test]
fn repeating_a_command_does_not_discard_an_unfinished_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("gpu-0.json");
    // A file without samples may be replaced.
    drop(Record::open(&out, head(), Unfinished::Keep).unwrap());
    let mut record = Record::open(&out, head(), Unfinished::Keep).unwrap();
    record.add(measured(8)).unwrap();
    let part = record.part().to_owned();
    drop(record);
    let error = Record::open(&out, head(), Unfinished::Keep)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("holds 1 samples") && error.contains("--resume"),
        "{error}"
    );
    assert_eq!(read(&part).unwrap().1, [measured(8)]);
    let record = Record::open(&out, head(), Unfinished::Discard).unwrap();
    assert!(record.samples().is_empty() && read(&part).unwrap().1.is_empty());
}

#[test]
fn two_measurements_do_not_write_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("gpu-0.json");
    let mut first = Record::open(&out, head(), Unfinished::Keep).unwrap();
    first.add(measured(8)).unwrap();
    for unfinished in [Unfinished::Keep, Unfinished::Resume, Unfinished::Discard] {
        let error = Record::open(&out, head(), unfinished).unwrap_err().to_string();
        assert!(error.contains("another gpu-bench"), "{error}");
    }
    assert_eq!(read(first.part()).unwrap().1, [measured(8)]);
    drop(first);
    assert_eq!(
        Record::open(&out, head(), Unfinished::Resume).unwrap().samples(),
        [measured(8)]
    );
}

#[test]
fn samples_of_two_clocks_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = Record::open(&folder.path().join("gpu-0.json"), head(), Unfinished::Keep).unwrap();
    record.add(measured(8)).unwrap();
    let mut other = measured(16);
    other.sample.clock = Clock::Engine;
    let error = record.add(other).unwrap_err().to_string();
    assert!(error.contains("clock"), "{error}");
    assert_eq!(record.samples(), [measured(8)]);
}

#[test]
fn files_of_different_names_are_different_files() {
    let samples = |out: &str| paths(Path::new(out)).0.display().to_string();
    assert_eq!(samples("a/gpu-0.json"), "a/gpu-0.samples.jsonl");
    assert_eq!(samples("worker-10.0.0.1"), "worker-10.0.0.1.samples.jsonl");
    assert_ne!(samples("worker-10.0.0.1"), samples("worker-10.0.0.2"));
}

#[test]
fn another_measurement_is_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("gpu-0.json");
    drop(Record::open(&out, head(), Unfinished::Keep).unwrap());
    let other = Head {
        grid: Grid {
            seed: 2,
            ..head().grid
        },
        ..head()
    };
    let error = Record::open(&out, other, Unfinished::Resume)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("another grid or seed; use --restart instead of --resume"),
        "{error}"
    );
}

#[test]
fn an_invalid_line_is_reported_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.jsonl");
    let first = serde_json::to_string(&head()).unwrap();
    fs::write(&path, format!("{first}\n{{\"cell\": 1}}\n")).unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(error.ends_with("line 2: expected a sample"), "{error}");
}

#[test]
fn a_file_is_replaced_atomically_without_leftovers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.json");
    fs::write(&path, "an older one").unwrap();
    replace(&path, b"new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = replace(Path::new("/nowhere/c.json"), b"").unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/c.json: cannot be written");
}
