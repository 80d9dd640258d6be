//! Cache events over real sockets: predicted against reported cached tokens, with and without events.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod agents;
mod agreement;
mod completions;
mod hostile;
mod lease;
mod loss;
mod policies;
mod ranks;
mod resets;
mod restart;

use metrics::Format;
use policy::ids::WorkerId;
use serde_json::json;
use tailroute::serve::Server;
use tailroute_e2e::client::{CHAT, call};
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{chat, words};
use tailroute_e2e::wait::{until, within};

/// A deterministic random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// Renders a router's metrics page.
fn rendered(router: &Server) -> Page {
    let parts = router.parts();
    let metrics = &parts.state.routing.metrics;
    Page::read(&metrics.render(&parts.gauges(), Format::Text).unwrap())
}

/// Waits until the events of all workers are followed.
async fn all_live(fleet: &Fleet) {
    let parts = fleet.router.parts();
    until("the events of all workers are followed", || {
        (0..parts.state.routing.fleet.workers().len() as u32)
            .all(|slot| parts.state.routing.knowledge.stored(WorkerId(slot)).is_some())
    })
    .await;
}

/// Sends requests past the router until it has heard of one from each engine. A subscription takes effect when the
/// publisher has read it.
async fn subscribed(fleet: &Fleet) {
    let knowledge = &fleet.router.parts().state.routing.knowledge;
    let mut seeds = 1000..;
    for (slot, engine) in (0..).zip(&fleet.engines) {
        let known = knowledge.stored(WorkerId(slot));
        within(async {
            while knowledge.stored(WorkerId(slot)) == known {
                let prompt = words(seeds.next().unwrap(), 100);
                let aside = chat(&[("user", &prompt)], json!({}));
                let answer = call(engine.addr(), "POST", CHAT, &[], aside.to_string()).await;
                assert_eq!(answer.status, 200);
            }
        })
        .await;
    }
}

/// Returns the shares of responses whose cached tokens were predicted exactly, and within a block.
fn agreement(page: &Page) -> (f64, f64) {
    let sum = |labels: &[(&str, &str)]| page.sum("tailroute_cached_tokens_agreement_total", labels);
    let (all, exact) = (sum(&[]), sum(&[("agreement", "exact")]));
    (exact / all, (exact + sum(&[("agreement", "block")])) / all)
}

/// Returns the number of responses whose cached tokens were predicted from events.
fn told(page: &Page) -> f64 {
    page.sum(
        "tailroute_cached_tokens_agreement_total",
        &[("evidence", "events")],
    )
}
