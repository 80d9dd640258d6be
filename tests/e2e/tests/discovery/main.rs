//! Workers discovered while the router serves: by a Kubernetes API server, a file, or DNS.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod api;
mod dns;
mod dnsmasq;
mod file;
mod hostile_api;
mod identity;
mod kubernetes;

use std::collections::BTreeMap;
use std::sync::Arc;

use config::{Config, Overrides, PolicyName, Sources};
use fleet::Worker;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, Answer, CHAT, Whole};
use tailroute_e2e::fleet::{COST, metrics, probe_often, quick};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk;
use tailroute_e2e::wait::{until, within};

/// An engine that takes a second for a thousand tokens.
fn slow() -> EngineConfig {
    EngineConfig {
        tpot_ms: 1000.0,
        ..quick()
    }
}

async fn engine(config: EngineConfig) -> Engine {
    Engine::start(config).await.unwrap()
}

/// A router with this discovery.
struct Finding {
    router: Server,
}

impl Finding {
    async fn start(discovery: &str) -> Self {
        Self::tweaked(discovery, |_| {}).await
    }

    /// Starts a router with round-robin routing, so that every worker gets turns.
    async fn tweaked(discovery: &str, tweak: impl FnOnce(&mut Config)) -> Self {
        let overrides = Overrides {
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some("127.0.0.1:0".to_owned()),
            ..Overrides::default()
        };
        let mut config = config::load(&Sources {
            file: Some(("t.toml", discovery)),
            environment: BTreeMap::new(),
            overrides,
        })
        .unwrap();
        probe_often(&mut config);
        config.routing.policy = PolicyName::RoundRobin;
        config.failure.slow_start = policy::units::Millis::ZERO;
        for worker in &mut config.workers {
            worker.cost = COST;
        }
        tweak(&mut config);
        Self {
            router: Server::start(config).await.unwrap(),
        }
    }

    fn find(&self, name: &str) -> Option<Arc<Worker>> {
        self.router.parts().state.routing.fleet.find(name)
    }

    /// Returns the names of the present workers, in order.
    fn names(&self) -> Vec<String> {
        let present = self.router.parts().state.routing.fleet.present();
        let mut names: Vec<String> = present.iter().map(|worker| worker.name().to_owned()).collect();
        names.sort();
        names
    }

    async fn until_ready(&self, names: &[&str]) {
        until("all of them to be ready", || {
            names
                .iter()
                .all(|name| self.find(name).is_some_and(|worker| worker.is_ready()))
        })
        .await;
    }

    async fn until_gone(&self, name: &str) {
        until("it to be gone", || self.find(name).is_none()).await;
    }

    async fn open(&self, body: &Value) -> Answer {
        let answer = client::open(self.router.address, "POST", CHAT, &[], body.to_string()).await;
        answer.expect("an answer")
    }

    async fn chat(&self) -> Whole {
        self.open(&talk::ask("hi", json!({}))).await.whole().await
    }

    /// Starts a stream of four thousand tokens on this worker.
    async fn stream_on(&self, name: &str) -> Answer {
        let body = talk::ask("hi", json!({ "stream": true, "max_tokens": 4000 }));
        for _ in 0..100 {
            let answer = self.open(&body).await;
            if answer.worker() == name {
                return answer;
            }
        }
        panic!("{name} gets nothing");
    }

    async fn admin(&self, path: &str) -> Value {
        let answer = client::admin(self.router.admin_address, "GET", path, &[], None).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// Returns the state of the only source.
    async fn source(&self) -> Value {
        self.admin("/admin/v1/discovery").await["sources"][0].clone()
    }

    /// Waits until the only source fails. Returns the reason.
    async fn until_failing(&self) -> String {
        let failing = async {
            loop {
                if let Some(what) = self.source().await["failure"]["what"].as_str() {
                    return what.to_owned();
                }
            }
        };
        within(failing).await
    }

    async fn until_heard_again(&self) {
        let heard = async { while !self.source().await["failure"].is_null() {} };
        within(heard).await;
    }

    async fn metrics(&self) -> Page {
        metrics(&self.router).await
    }
}
