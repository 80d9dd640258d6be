//! Several routers with the same engines, connected by a real NATS server.
//!
//! They need `nats-server`, so they run with `make test-replicas`, which installs it, and not with `make test`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests and their helpers, whose reports go to standard output"
)]

mod calibrating;
mod hostile;
mod joining;
mod leading;
mod live_policy;
mod nats;
mod outage;
mod rolling;
mod service;
mod streams;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use config::Config;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, Answer, CHAT, Whole};
use tailroute_e2e::fleet::{quick, route, stuck_in_prefill};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::{until, within};

use nats::Nats;

/// Time for replicas to agree again after NATS has returned, on a busy machine.
const CONVERGED_WITHIN: Duration = Duration::from_secs(8);

/// A turn is reported as sent, as begun and as answered.
const REPORTS_PER_TURN: u32 = 3;

/// Engines, routers, and the NATS server.
struct Replicas {
    nats: Nats,
    engines: Vec<Engine>,
    routers: Vec<Server>,
}

fn on_the_bus(config: &mut Config, url: &str, name: &str) {
    config.fleet = Some(config::Fleet {
        servers: vec![url.to_owned()],
        credentials: None,
        token: None,
        ca: None,
        cert: None,
        key: None,
        cluster: "test".to_owned(),
        replica: Some(name.to_owned()),
    });
}

async fn join(engines: &[Engine], url: &str, name: &str) -> Server {
    let addresses: Vec<SocketAddr> = engines.iter().map(Engine::addr).collect();
    route(&addresses, |config| on_the_bus(config, url, name)).await
}

impl Replicas {
    /// Starts routers and engines, and waits until all routers hear each other.
    async fn start(routers: usize, engines: Vec<EngineConfig>) -> Self {
        Self::start_by(Nats::start().await, routers, engines).await
    }

    async fn start_by(nats: Nats, routers: usize, engines: Vec<EngineConfig>) -> Self {
        let mut running = Vec::new();
        for engine in engines {
            running.push(Engine::start(engine).await.unwrap());
        }
        let mut replicas = Self {
            engines: running,
            routers: Vec::new(),
            nats,
        };
        for number in 0..routers {
            let name = format!("router-{number}");
            let router = join(&replicas.engines, &replicas.nats.url(), &name).await;
            replicas.routers.push(router);
        }
        replicas.hear_of_each_other().await;
        replicas
    }

    async fn hear_of_each_other(&self) {
        let others = self.routers.len() - 1;
        for router in &self.routers {
            let bus = router.parts().bus.as_ref().unwrap();
            until("all replicas hear of each other", || {
                bus.is_up() && bus.peers.count().0 == others
            })
            .await;
        }
    }

    /// Sends a request by this router. Returns once it has reached an engine.
    async fn sends(&self, router: usize, text: &str) -> tokio::task::JoinHandle<Option<Answer>> {
        let before: u64 = self.received().iter().sum();
        let address = self.routers[router].address;
        let body = ask(text, json!({ "stream": true })).to_string();
        let sent = tokio::spawn(async move { client::open(address, "POST", CHAT, &[], body).await.ok() });
        until("an engine has it", || {
            self.received().iter().sum::<u64>() > before
        })
        .await;
        sent
    }

    fn received(&self) -> Vec<u64> {
        self.engines
            .iter()
            .map(|engine| engine.stats().received)
            .collect()
    }

    /// Returns the requests of other replicas that this router counts on each engine.
    fn others(&self, router: usize) -> Vec<u32> {
        let workers = self.routers[router].parts().state.routing.fleet.workers();
        workers
            .iter()
            .map(|worker| worker.with_load(|load| load.others))
            .collect()
    }

    async fn admin(&self, router: usize, path: &str) -> Whole {
        client::admin(self.routers[router].admin_address, "GET", path, &[], None).await
    }

    async fn says_of_the_others(&self, router: usize) -> Value {
        self.admin(router, "/admin/v1/replicas").await.json()
    }

    async fn metrics(&self, router: usize) -> Page {
        Page::read(self.admin(router, "/metrics").await.text())
    }

    /// Waits until this router has received this many reports from the others.
    async fn receives(&self, router: usize, reports: u32) {
        let direction = [("direction", "received")];
        loop {
            let page = self.metrics(router).await;
            if page.sum("tailroute_bus_events_total", &direction) >= f64::from(reports) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sends the conversation's next turn by this router. Returns the cached prompt tokens.
    async fn turn(&self, router: usize, talk: &mut Conversation, text: &str) -> u64 {
        self.turn_of("conversation-7", router, talk, text).await
    }

    /// Does the same for a conversation with this session id.
    async fn turn_of(&self, name: &str, router: usize, talk: &mut Conversation, text: &str) -> u64 {
        talk.user(text);
        let (address, body) = (self.routers[router].address, talk.body(json!({})).to_string());
        let headers = [("x-session-id", name)];
        let answer = client::open(address, "POST", CHAT, &headers, body).await.unwrap();
        let answer = answer.whole().await.json();
        talk.assistant(answer["choices"][0]["message"]["content"].as_str().unwrap());
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    }
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn two_routers_do_not_send_to_the_same_idle_engine() {
    let replicas = Replicas::start(2, vec![stuck_in_prefill(); 4]).await;
    // Kept, because dropping a response disconnects.
    let mut under_way = Vec::new();
    for turn in 0..4 {
        let (router, other) = (turn % 2, 1 - turn % 2);
        let before: u32 = replicas.others(other).iter().sum();
        under_way.push(replicas.sends(router, &words(turn as u64, 100)).await);
        until("the other router counts it", || {
            replicas.others(other).iter().sum::<u32>() == before + 1
        })
        .await;
    }
    assert_eq!(replicas.received(), [1, 1, 1, 1]);
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_conversation_hits_its_cache_through_any_router() {
    let replicas = Replicas::start(3, vec![quick(); 4]).await;
    let mut talk = Conversation::new(&words(1, 200));
    let mut before = 0;
    let mut turns_of = [0; 3];
    for turn in 0..6 {
        let cached = replicas
            .turn(turn % 3, &mut talk, &words(100 + turn as u64, 150))
            .await;
        assert!(
            turn == 0 || cached > before,
            "turn {turn}: {cached} after {before}"
        );
        before = cached;
        turns_of[turn % 3] += 1;
        for router in 0..3 {
            let others = turns_of.iter().sum::<u32>() - turns_of[router];
            within(replicas.receives(router, REPORTS_PER_TURN * others)).await;
        }
    }
    let used = replicas.received().into_iter().filter(|received| *received > 0);
    assert_eq!(used.count(), 1, "one engine has it all");
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_router_without_nats_serves_alone_and_reports_it() {
    let mut replicas = Replicas::start(2, vec![stuck_in_prefill(), stuck_in_prefill(), quick()]).await;
    let told = replicas.says_of_the_others(0).await;
    assert_eq!(
        (&told["configured"], &told["connected"], &told["replica"]),
        (&json!(true), &json!(true), &json!("router-0"))
    );
    replicas.nats.kill();
    for router in 0..2 {
        let bus = replicas.routers[router].parts().bus.as_ref().unwrap();
        until("it knows that NATS is gone", || !bus.is_up()).await;
        let ready = replicas.admin(router, "/readyz").await;
        assert_eq!(ready.status, 200, "{}", ready.text());
        let told = replicas.says_of_the_others(router).await;
        assert_eq!(told["connected"], false);
        let page = replicas.metrics(router).await;
        assert_eq!(page.sum("tailroute_bus_connected", &[]), 0.0);
    }
    // Requests of the other replica stop counting, because their ends cannot be reported.
    let _under_way = replicas.sends(0, "while NATS is gone").await;
    until("the other is taken to be gone", || {
        replicas.routers[1].parts().bus.as_ref().unwrap().peers.count() == (0, 0)
    })
    .await;

    replicas.nats.revive().await;
    let back = Instant::now();
    replicas.hear_of_each_other().await;
    until("what is under way counts again", || {
        replicas.others(1).iter().sum::<u32>() == 1
    })
    .await;
    assert!(back.elapsed() < CONVERGED_WITHIN, "{:?}", back.elapsed());
    assert_eq!(replicas.says_of_the_others(1).await["peers"][0]["in_flight"], 1);
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_router_starts_without_nats_and_joins_later() {
    let mut replicas = Replicas::start(1, vec![quick()]).await;
    replicas.nats.kill();
    let late = within(Box::pin(join(&replicas.engines, &replicas.nats.url(), "late"))).await;
    let body = ask("is anybody there", json!({})).to_string();
    let answer = client::open(late.address, "POST", CHAT, &[], body).await.unwrap();
    assert_eq!(answer.whole().await.status, 200);
    replicas.routers.push(late);
    replicas.nats.revive().await;
    replicas.hear_of_each_other().await;
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_dead_router_is_removed_within_seconds() {
    let mut replicas = Replicas::start(2, vec![stuck_in_prefill(); 2]).await;
    let under_way = replicas.sends(1, "before it dies").await;
    until("it counts", || replicas.others(0).iter().sum::<u32>() == 1).await;
    // Dropping it ends its tasks and its requests in flight.
    drop(replicas.routers.pop());
    under_way.abort();
    let gone = Instant::now();
    until("nothing of it counts", || {
        replicas.others(0).iter().sum::<u32>() == 0
    })
    .await;
    assert!(gone.elapsed() < CONVERGED_WITHIN, "{:?}", gone.elapsed());
}

/// The processes' part; does nothing by itself.
#[test]
#[ignore = "a part that the rolling restart starts as a process of its own"]
fn part() {
    tailroute_e2e::child::play();
}
