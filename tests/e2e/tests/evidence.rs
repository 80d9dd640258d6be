//! What workers say of their caches, over real sockets: predictions against reports, with events and without.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

use config::KvEvents;
use policy::ids::WorkerId;
use policy::units::Tokens;
use sim_engine::{EngineConfig, Fault, KvEventsConfig};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::wait::until;

const CAPACITY_BLOCKS: u64 = 500;
const TURNS: u64 = 200;

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

async fn fleet(engines: usize, events: bool) -> Fleet {
    let engine = EngineConfig {
        kv_events: Some(KvEventsConfig::default()),
        capacity_blocks: CAPACITY_BLOCKS,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine; engines], |config| {
        for worker in &mut config.workers {
            worker.capacity = Tokens(CAPACITY_BLOCKS * u64::from(worker.block_size));
            if !events {
                worker.kv_events = KvEvents::Off;
            }
        }
    })
    .await;
    if events {
        all_live(&fleet).await;
    }
    fleet
}

async fn all_live(fleet: &Fleet) {
    let knowledge = &fleet.router.app().knowledge;
    until("the events of all workers are followed", || {
        (0..fleet.engines.len() as u32).all(|slot| knowledge.stored(WorkerId(slot)).is_some())
    })
    .await;
}

/// Turns of conversations that share system prompts, fork at earlier turns, and are more than the caches hold; halfway
/// a cache is cleared. Returns the metrics page.
async fn talk(fleet: &Fleet, seed: u64) -> Page {
    let mut dice = Dice(seed);
    let mut talks: Vec<Conversation> = Vec::new();
    for turn in 0..TURNS {
        if turn == TURNS / 2 {
            fleet.engines[0].set_fault(Fault {
                clear_cache: true,
                ..Fault::default()
            });
        }
        let at = match dice.roll(10) {
            0 | 1 => {
                talks.push(Conversation::new(&words(dice.roll(3), 150)));
                talks.len() - 1
            }
            2 if !talks.is_empty() => {
                let copy = talks[dice.roll(talks.len() as u64) as usize].clone();
                talks.push(copy);
                talks.len() - 1
            }
            _ if talks.is_empty() => {
                talks.push(Conversation::new(&words(9, 150)));
                0
            }
            _ => {
                let newest = talks.len().min(12) as u64;
                talks.len() - 1 - dice.roll(newest) as usize
            }
        };
        let name = format!("talk-{at}");
        let length = 10 + dice.roll(120) as usize;
        fleet
            .turn(
                &mut talks[at],
                &[("x-session-id", &name)],
                &words(1000 + turn, length),
            )
            .await;
        fleet.at_rest().await;
    }
    fleet.metrics().await
}

/// Of the answers, the share whose cached tokens were predicted exactly, and within a block.
fn agreement(page: &Page) -> (f64, f64) {
    let sum = |labels: &[(&str, &str)]| page.sum("tailroute_cached_tokens_agreement_total", labels);
    let (all, exact) = (sum(&[]), sum(&[("agreement", "exact")]));
    (exact / all, (exact + sum(&[("agreement", "block")])) / all)
}

#[tokio::test]
async fn with_events_the_cached_tokens_are_known_exactly() {
    let fleet = fleet(2, true).await;
    let page = talk(&fleet, 1).await;
    let (exact, block) = agreement(&page);
    let told = page.sum(
        "tailroute_cached_tokens_agreement_total",
        &[("evidence", "events")],
    );
    assert!(told >= 0.9 * TURNS as f64, "{told} told by events");
    assert!(exact >= 0.99, "{exact} exact, {block} within a block");
}

#[tokio::test]
async fn without_events_the_mirror_is_nearly_as_good() {
    let fleet = fleet(2, false).await;
    let page = talk(&fleet, 1).await;
    let (exact, block) = agreement(&page);
    assert!(
        exact >= 0.9 && block >= 0.95,
        "{exact} exact, {block} within a block"
    );
}
