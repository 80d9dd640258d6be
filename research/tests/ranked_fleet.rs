//! A simulated fleet whose workers rank their blocks.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use lab::cache::ranked_rules::cache_rule;
use policy::cost::PrefillCost;
use policy::units::{Millis, Tokens};
use simulator::agentic::Agentic;
use simulator::fleet::{Decode, FleetConfig, FleetReport, Pace, View, Workload, run};
use simulator::trace::Turn;

const COST: PrefillCost = PrefillCost::linear(0.1, 20.0);
const RANKED: [&str; 4] = ["belady", "to-belady", "workload-aware", "gdfs"];

/// Plays coding agents at a load at which turns overlap and responses take time.
fn agents(rule: &str, workers: usize, blocks: u64, view: View) -> FleetReport {
    let turns: Vec<Turn> = Agentic::new(1).take(1200).collect();
    let config = FleetConfig {
        cache: cache_rule(rule).unwrap(),
        view,
        pace: Pace::Load(1.0),
        decode: Decode {
            ms_per_token: 1.0,
            ..Decode::default()
        },
        jitter_s: 0.0,
        warm_up: 0.0,
        per_turn: true,
        ..FleetConfig::uniform(workers, COST, Tokens(blocks * 512))
    };
    let report = run(&Workload::new(&turns, 512).unwrap(), &config);
    let mut served: Vec<u32> = report
        .per_turn
        .iter()
        .flatten()
        .map(|record| record.turn)
        .collect();
    served.sort_unstable();
    assert_eq!(
        served,
        (0..1200).collect::<Vec<u32>>(),
        "each turn is served once"
    );
    report
}

fn ttfts(report: &FleetReport) -> Vec<f64> {
    let mut records = report.per_turn.clone().unwrap();
    records.sort_by_key(|record| record.turn);
    records.iter().map(|record| record.ttft_ms).collect()
}

#[test]
fn hindsight_beats_recency_on_one_worker() {
    let [lru, belady, tail] =
        ["lru", "belady", "to-belady"].map(|rule| agents(rule, 1, 2000, View::Exact).hit_ratio);
    assert!(belady > lru + 0.05, "{belady} {lru}");
    assert!(tail > lru + 0.01, "{tail} {lru}");
}

#[test]
fn nothing_that_a_lone_worker_can_know_beats_hindsight() {
    let hits = |rule| agents(rule, 1, 1000, View::Exact).hit_ratio;
    let best = hits("belady");
    for rule in [
        "lru",
        "t-lru",
        "end-lru",
        "length-aware",
        "workload-aware",
        "gdfs",
    ] {
        assert!(hits(rule) < best, "{rule}: {} {best}", hits(rule));
    }
}

#[test]
fn where_everything_fits_no_rule_matters() {
    let lru = agents("lru", 2, 1 << 20, View::Exact);
    for rule in RANKED {
        let report = agents(rule, 2, 1 << 20, View::Exact);
        assert_eq!(ttfts(&report), ttfts(&lru), "{rule}");
    }
}

#[test]
fn events_tell_what_a_ranked_cache_holds() {
    let told = View::Events {
        delay: Millis::ZERO,
        loss: 0.0,
    };
    for rule in RANKED {
        let [exact, told] = [View::Exact, told].map(|view| agents(rule, 3, 1000, view).hit_ratio);
        assert!((exact - told).abs() < 0.02, "{rule}: {exact} {told}");
    }
}

#[test]
fn a_seed_is_a_result_under_every_rule() {
    for rule in RANKED {
        let report = || agents(rule, 3, 500, View::Mirror);
        assert_eq!(report(), report(), "{rule}");
    }
}
