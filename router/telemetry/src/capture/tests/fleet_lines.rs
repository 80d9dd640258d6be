//! Lines with the fleet.

use super::*;

fn fleet(at_s: f64, alpha: f64) -> FleetRecord {
    serde_json::from_value(serde_json::json!({
        "at_s": at_s, "settings_since_s": 0, "settings": {}, "utilisation_window_ms": 60_000, "objective_ms": 500,
        "objective_share": 0.95, "next_prompt_tokens": 200, "follows_hints": true,
        "workers": [{
            "name": "w", "alpha_ms_per_token": alpha, "beta_ms": 20, "gamma_ms_per_token2": 0, "overhead_ms": 0,
            "cost_source": "learned", "capacity_tokens": 1000, "capacity_source": "reported",
        }],
    }))
    .unwrap()
}

fn alphas(path: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["fleet"]["workers"][0]["alpha_ms_per_token"].as_f64()
    });
    lines.collect()
}

#[test]
fn the_fleet_is_written_when_it_changes_and_begins_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.jsonl");
    let runtime = runtime();
    let (capture, _) = start(&path, 4000);
    let look = |at_s: f64, alpha, last| {
        capture.look(Millis(at_s * 1e3), last, || Some(fleet(at_s, alpha)));
        runtime.block_on(capture.flush());
    };
    look(0.0, 0.1, false);
    look(1.0, 0.2, false);
    assert_eq!(alphas(&path), [0.1], "too early");
    look(10.0, 0.2, false);
    look(20.0, 0.201, false);
    assert_eq!(alphas(&path), [0.1, 0.2], "not changed");
    look(21.0, 0.3, true);
    assert_eq!(alphas(&path), [0.1, 0.2, 0.3]);
    let turn = Chat(vec![("user", text(1, 4000))]).record(1, 1);
    for at in 0..40 {
        capture.begin(Millis(f64::from(at))).hand_in(turn.clone());
        runtime.block_on(capture.flush());
    }
    assert_eq!(alphas(&path), [0.3]);
    assert_eq!(alphas(&path.with_extension("jsonl.1")), [0.3]);
    let mut file = TraceFile::open(&path, Format::Auto).unwrap();
    assert!(file.by_ref().all(|turn| turn.is_ok()));
    assert_eq!(file.reader().fleet(), Some(&fleet(21.0, 0.3)));
}

#[test]
fn a_memory_has_the_fleet_that_was_set_last() {
    let memory = Memory::new(1 << 20);
    let turn = Chat(vec![("user", text(1, 100))]).record(1, 1);
    assert!(memory.write(Millis(1.0), &turn));
    memory.fleet(&fleet(1.0, 0.1));
    memory.fleet(&fleet(2.0, 0.2));
    let mut file = TraceFile::of_bytes(&memory.newest(usize::MAX));
    assert_eq!(file.by_ref().filter(|turn| turn.is_ok()).count(), 1);
    assert_eq!(file.reader().fleet(), Some(&fleet(2.0, 0.2)));
}
