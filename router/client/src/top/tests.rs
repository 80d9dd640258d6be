//! Golden tests of the drawn screen.

use serde_json::{Value, json};

use super::changes::changes;
use super::look::Screen;
use super::text;
use ratatui::layout::Size;

fn worker(name: &str, state: &str, wait_ms: f64) -> Value {
    json!({
        "name": name, "state": state, "in_flight": 3, "wait_ms": wait_ms, "utilisation": 0.42,
        "cost": { "alpha_ms_per_token": 0.05 }, "xi_tokens": 7600, "held_tokens": 300_000, "capacity_tokens": 500_000,
        "breaker": "closed",
    })
}

fn decision(request: &str, worker: &str, [ttft, ago_s]: [f64; 2], cause: Value) -> Value {
    json!({
        "request": request, "worker": worker, "objective_ms": 400.0, "arrived_unix_ms": 1e12 - ago_s * 1e3,
        "outcome": { "ttft_ms": ttft, "cause": cause },
    })
}

fn prefixes() -> [Value; 2] {
    let prefix = |name: &str, forks: u32, copies: Value| json!({ "prefix": name, "forks": forks, "holders": forks, "copies": copies });
    let shared = json!([{ "worker": "gpu-0", "tokens": 2_048 }, { "worker": "gpu-1", "tokens": 512 }]);
    let own = json!([{ "worker": "gpu-1", "tokens": null }]);
    [
        json!({ "prefixes": [prefix("00000000000000aa", 12, shared)] }),
        json!({ "prefixes": [prefix("00000000000000bb", 1, own)] }),
    ]
}

/// A router with two workers, one of them late.
fn screen() -> Screen {
    let mut screen = Screen::new("127.0.0.1:9090");
    screen.workers = vec![
        worker("gpu-0", "ready", 12.25),
        worker("gpu-1", "draining", 930.0),
    ];
    screen.policy = json!({ "settings": { "policy": "tail" }, "revision": 3 });
    screen.objective =
        json!({ "share": 0.95, "classes": [{ "class": "default", "met": 970, "missed": 30 }] });
    let entry = |action: &str, outcome: &str, ago_s: f64| {
        json!({
            "who": { "name": "alice" }, "action": action, "outcome": outcome, "target": "gpu-1", "why": "its fan is loud",
            "at_unix_ms": 1e12 - ago_s * 1e3,
        })
    };
    screen.changes = changes(&[
        entry("policy.put", "refused", 5.0),
        entry("policy.put", "refused", 6.0),
        entry("workers.drain", "applied", 90.0),
    ]);
    screen.p95_ms = [0, 40, 80, 160, 320, 240, 120].into();
    screen.percentiles = Some([61.0, 240.0, 930.0]);
    let late = vec![
        decision(
            "0123456789abcdef0123456789abcdef",
            "gpu-1",
            [1830.4, 12.0],
            json!("engine"),
        ),
        decision("another-request", "gpu-0", [401.0, 7300.0], Value::Null),
    ];
    screen.found(&prefixes(), json!({ "decisions": late, "capacity": 15_000 }));
    screen.now_unix_ms = 1e12;
    screen
}

/// Asserts that a screen of this size equals `router/client/tests/fixtures/top/NAME.txt`. `TAILROUTE_BLESS=1` writes
/// the file.
fn shows(name: &str, screen: &Screen, size: Size) {
    let path = format!("{}/tests/fixtures/top/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let drawn = text(screen, size).unwrap() + "\n";
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    assert_eq!(drawn, std::fs::read_to_string(&path).unwrap(), "\n{drawn}");
}

#[test]
fn a_wide_screen_has_workers_prefixes_late_turns_and_changes() {
    shows("wide", &screen(), Size::new(120, 33));
}

#[test]
fn a_screen_of_80_by_24_has_all_parts_and_whole_headers() {
    shows("low", &screen(), Size::new(80, 24));
}

#[test]
fn workers_without_room_are_counted() {
    let mut screen = screen();
    screen.workers = (0..5)
        .map(|at| worker(&format!("gpu-{at}"), "ready", f64::from(at)))
        .collect();
    let drawn = text(&screen, Size::new(80, 24)).unwrap();
    assert!(drawn.contains("longest wait first; 3 of 5 hidden"), "{drawn}");
    assert!(drawn.contains("gpu-3") && !drawn.contains("gpu-2 "), "{drawn}");
    let drawn = text(&screen, Size::new(80, 40)).unwrap();
    assert!(!drawn.contains("hidden"), "{drawn}");
}

#[test]
fn a_poll_that_is_not_answered_is_shown_with_its_time() {
    let mut screen = screen();
    screen.silent_for = std::time::Duration::from_millis(7_500);
    let drawn = text(&screen, Size::new(80, 24)).unwrap();
    assert!(
        drawn.contains("127.0.0.1:9090 has not answered for 7 s") && drawn.contains("gpu-1"),
        "{drawn}"
    );
}

#[test]
fn ids_of_32_digits_are_whole_on_a_wide_screen_and_marked_where_they_are_cut() {
    let drawn = |width| text(&screen(), Size::new(width, 33)).unwrap();
    assert!(drawn(120).contains("0123456789abcdef0123456789abcdef"));
    assert!(drawn(80).contains("0123456789abc…"), "{}", drawn(80));
}

#[test]
fn the_help_fits_80_by_24() {
    let mut screen = screen();
    screen.help = true;
    shows("help", &screen, Size::new(80, 24));
}

#[test]
fn a_lower_screen_leaves_prefixes_and_late_turns_out() {
    let drawn = text(&screen(), Size::new(80, 20)).unwrap();
    assert!(!drawn.contains("hottest"), "{drawn}");
    assert!(
        drawn.contains("gpu-1") && drawn.contains("workers.drain"),
        "{drawn}"
    );
}

#[test]
fn decisions_that_are_not_kept_and_absent_late_turns_are_shown_differently() {
    let mut screen = screen();
    let none = |capacity: u32| json!({ "decisions": [], "capacity": capacity });
    screen.found(&prefixes(), none(100));
    let well = text(&screen, Size::new(100, 33)).unwrap();
    assert!(
        well.contains("late turns: none among the stored decisions"),
        "{well}"
    );
    screen.found(&prefixes(), none(0));
    let unknown = text(&screen, Size::new(100, 33)).unwrap();
    assert!(unknown.contains("the router keeps no decisions"), "{unknown}");
}

#[test]
fn a_slow_worker_is_named_in_its_state() {
    let mut screen = screen();
    screen.workers[0]["slow"] = json!({ "factor": 7.91 });
    screen.found(
        &prefixes(),
        json!({ "decisions": [decision("r", "gpu-0", [900.0, 1.0], json!("slow_worker"))], "capacity": 1 }),
    );
    let drawn = text(&screen, Size::new(80, 24)).unwrap();
    assert!(
        drawn.contains("gpu-0        slow 7.9× ") && drawn.contains(" slow    gpu-0"),
        "{drawn}"
    );
}

#[test]
fn a_failed_poll_keeps_the_screen_and_shows_the_error() {
    let mut screen = screen();
    screen.note(Err(anyhow::anyhow!("no answer from 127.0.0.1:9090")));
    let drawn = text(&screen, Size::new(100, 33)).unwrap();
    assert!(
        drawn.contains("no answer from 127.0.0.1:9090") && drawn.contains("gpu-1"),
        "{drawn}"
    );
}
