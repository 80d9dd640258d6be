//! The simulators' results for fixed seeds, to the last digit: a change of any rule shows here.
//!
//! `TAILROUTE_BLESS=1 cargo test -p tailroute-lab --test sim_golden` records them anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const POLICIES: &str = "tail,round_robin,least_loaded,cache_aware,cache_aware_smg,least_ttft,random,power_of_two,\
                        consistent_hash,prefix_hash";

/// Returns the command lines.
fn commands() -> Vec<String> {
    let fleet = |rest: &str| format!("sim fleet --json --turns 500 --workers 4 {rest}");
    let cache = |rest: &str| format!("sim cache --json --turns 500 {rest}");
    vec![
        fleet(&format!(
            "--trace hot:1 --capacity-blocks 1500 --load 0.8 --policies {POLICIES} --cache lru"
        )),
        fleet(
            "--trace hot:2 --capacity-blocks 1500 --load 1.1 --policies tail --cache lru,tail,t-lru,threshold-lru",
        ),
        fleet(
            "--trace hot:3 --capacity-blocks 1500 --load 0.5 --policies tail --cache gdfs,workload-aware,end-lru,belady,to-belady",
        ),
        fleet(
            "--trace agents:1 --capacity-blocks 1000 --load 2 --policies tail,least_ttft --decode-ms 10 --hold-ms 200",
        ),
        fleet(
            "--trace gen:wildchat:1 --block-tokens 16 --capacity-blocks 400 --load 0.6 --policies tail --view exact",
        ),
        fleet(
            "--trace hot:4 --capacity-blocks 1500 --load 0.8 --policies tail --routers 2:5:0.1 --view events:5:0.1",
        ),
        fleet(
            "--trace hot:5 --capacity-blocks 1500 --load 0.8 --policies tail --fault slow:1:3@0.3,die:2@0.5,return:2@0.7",
        ),
        fleet(
            "--trace hot:6 --capacity-blocks 1500 --load 0.9 --policies tail --order sjf --chunk-tokens 512 --interference-ms 1 --decode-ms 5",
        ),
        cache("--trace gen:wildchat:2 --capacity-tokens 10000 --xi-ms 150"),
        cache("--trace hot:7 --capacity-tokens 40000 --xi-ms 150 --shared"),
    ]
}

#[test]
fn fixed_seeds_give_what_they_gave() {
    let mut now = String::new();
    for command in commands() {
        let ran = Command::new(env!("CARGO_BIN_EXE_tailroute-lab"))
            .args(command.split(' '))
            .output()
            .unwrap();
        assert!(
            ran.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        writeln!(
            now,
            "$ tailroute-lab {command}\n{}",
            String::from_utf8(ran.stdout).unwrap()
        )
        .unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim_golden.txt");
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(file, now).unwrap();
        return;
    }
    let recorded = std::fs::read_to_string(file).unwrap();
    let mut command = "";
    for (recorded, now) in recorded.lines().zip(now.lines()) {
        if now.starts_with('$') {
            command = now;
        }
        assert_eq!(recorded, now, "{command}");
    }
    assert_eq!(recorded.lines().count(), now.lines().count());
}
