//! Hostile peers beside honest streams: each kind by itself, and all at once.

use crate::honest::Honest;
use crate::livez::Livez;
use crate::publishers::{Habit, Publisher};
use crate::report::Report;
use crate::stage::{Plan, Stage};
use crate::strangers::{Kind, Strangers, Target};
use crate::workers::{Evil, Models};
use crate::{divided_by, http1, http2, seconds, streams, turn, workers};

const ENGINES: usize = 2;
/// Memory that publishers may make the router hold in addition: a message of 64 MiB, and its decoded copy.
const OF_PUBLISHERS_KIB: u64 = 256 * 1024;

/// Runs hostile peers beside honest streams.
async fn beside(scenario: &'static str, kinds: &[Kind], habits: &[Habit]) {
    let _turn = turn().await;
    let mut report = Report::new(scenario);
    let (mut evils, mut publishers, mut sections) = (Vec::new(), Vec::new(), Vec::new());
    if !kinds.is_empty() {
        let evil = Evil::start(Models::One).await;
        sections.push(evil.worker(""));
        evils.push(evil);
    }
    for habit in habits {
        let (evil, publisher) = (Evil::start(Models::One).await, Publisher::start(*habit).await);
        sections.push(evil.worker(&publisher.lines()));
        evils.push(evil);
        publishers.push(publisher);
    }
    let mut stage = Stage::start(Plan {
        engines: ENGINES,
        workers: sections,
        ..Plan::default()
    })
    .await;
    let at_rest = stage.sample().await;
    let livez = Livez::start(stage.admin);
    let honest = Honest::start(&stage, streams()).await;
    let target = Target::new(stage.data());
    let strangers = Strangers::start(kinds, &target, divided_by());
    tokio::time::sleep(seconds()).await;
    if kinds.is_empty() {
        drop(strangers);
    } else {
        strangers.end(&mut report).await;
    }
    report.honest(&honest.end().await);
    report.livez(&livez.end());
    let lives = stage.router.lives();
    report.add("the router lives", "yes", if lives { "yes" } else { "no" }, lives);
    if lives && !kinds.is_empty() {
        let steered: u64 = evils.iter().map(Evil::steered).sum();
        report.add(
            "requests that steer an engine",
            "0",
            steered.to_string(),
            steered == 0,
        );
        let visits: u64 = evils.iter().map(Evil::visits_elsewhere).sum();
        report.add(
            "connections to hosts that workers name",
            "0",
            visits.to_string(),
            visits == 0,
        );
    }
    if lives {
        let after = stage.settled(at_rest).await;
        report.held(&stage, at_rest, after);
        if kinds.is_empty() && !habits.is_empty() {
            let grown = after.usage.peak_kib.saturating_sub(at_rest.usage.rss_kib);
            report.add(
                "memory for publishers",
                format!("<= {} MiB", OF_PUBLISHERS_KIB / 1024),
                format!("{} MiB", grown / 1024),
                grown <= OF_PUBLISHERS_KIB,
            );
        }
    }
    report.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_streams_alone_are_all_complete() {
    beside("honest streams alone", &[], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_clients_of_http1_cost_honest_ones_nothing() {
    beside("hostile clients, HTTP/1.1", &http1::KINDS, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_clients_of_http2_cost_honest_ones_nothing() {
    beside("hostile clients, HTTP/2", &http2::KINDS, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_workers_cost_the_clients_of_honest_ones_nothing() {
    beside("hostile workers", &workers::KINDS, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_that_claim_any_length_cost_nothing() {
    let habits = [Habit::HugeFrame, Habit::HugeCommand, Habit::HugeReplay];
    beside("hostile publishers: lengths", &[], &habits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_that_never_end_cost_a_bounded_amount_of_memory() {
    let habits = [
        Habit::EndlessFrame,
        Habit::EndlessParts,
        Habit::EndlessGreeting,
        Habit::Garbage,
    ];
    beside("hostile publishers: no end", &[], &habits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_hostile_peers_at_once_cost_honest_clients_nothing() {
    let kinds: Vec<Kind> = [&http1::KINDS[..], &http2::KINDS, &workers::KINDS].concat();
    let habits = [
        Habit::HugeFrame,
        Habit::HugeCommand,
        Habit::HugeReplay,
        Habit::EndlessFrame,
        Habit::EndlessParts,
        Habit::EndlessGreeting,
        Habit::Garbage,
    ];
    beside("all at once", &kinds, &habits).await;
}
