//! A router with workers in this process, connected through real sockets on free ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::{Config, Overrides};
use fleet::Worker;
use policy::cost::PrefillCost;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig, Fault};
use tailroute::serve::Server;
use tokio::net::TcpStream;

use crate::client::{self, Answer, CHAT, Fields, Whole};
use crate::metrics::Page;
use crate::talk::Conversation;
use crate::wait::{PATIENCE, until, within};

/// Ten virtual hours in milliseconds: nothing with this cost ends within a test.
pub const NEVER_MS: f64 = 3.6e7;
/// Prefill cost of the engines, and the router's initial assumption of it.
pub const COST: PrefillCost = PrefillCost::linear(0.1, 20.0);

/// Returns the configuration of an engine with time scaled by 1,000 that captures its requests.
#[must_use]
pub fn quick() -> EngineConfig {
    EngineConfig {
        time_scale: 1000.0,
        prefill: COST,
        default_output_tokens: 16,
        multibyte: true,
        capture: true,
        ..EngineConfig::default()
    }
}

/// Returns the configuration of an engine that never completes a prefill.
#[must_use]
pub fn stuck_in_prefill() -> EngineConfig {
    EngineConfig {
        prefill: PrefillCost::linear(0.0, NEVER_MS),
        ..quick()
    }
}

/// Returns the configuration of an engine that generates one token at once, and never a second one.
#[must_use]
pub fn stuck_in_decode() -> EngineConfig {
    EngineConfig {
        tpot_ms: NEVER_MS,
        ..quick()
    }
}

/// Sets probes at short intervals with long timeouts, so that a busy machine makes no worker look dead.
pub fn probe_often(config: &mut Config) {
    config.health.interval = Duration::from_millis(10);
    config.health.timeout = PATIENCE;
    config.health.queue_interval = Some(Duration::from_millis(10));
}

/// A router and its engines.
pub struct Fleet {
    /// Engines, in the order of the router's workers.
    pub engines: Vec<Engine>,
    pub router: Server,
}

/// A successful turn of a conversation.
#[derive(Clone, Debug)]
pub struct CompletedTurn {
    /// Index of the engine that answered.
    pub engine: usize,
    /// Name of the worker: the engine, or one of its ranks.
    pub worker: String,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Prompt tokens found in the engine's cache.
    pub cached: u64,
}

/// Returns a configuration with these workers, free ports, patient probes, and defaults otherwise.
///
/// # Panics
/// If a worker's address is not valid in a URL.
#[must_use]
pub fn configured(workers: &[SocketAddr]) -> Config {
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".to_owned()),
        admin: Some("127.0.0.1:0".to_owned()),
        workers: workers.iter().map(|worker| format!("http://{worker}")).collect(),
        policy: None,
    };
    let mut config = config::load_file(None, BTreeMap::new(), overrides).unwrap();
    // Models and hint dialect are asked for before the first turn; a busy machine must not make that time out.
    config.health.timeout = Duration::from_secs(5);
    for worker in &mut config.workers {
        worker.cost = COST;
    }
    config
}

/// Starts a router with these workers, and waits until all of them are ready.
///
/// # Panics
/// If they do not become ready.
pub async fn route(workers: &[SocketAddr], tweak: impl FnOnce(&mut Config)) -> Server {
    let mut config = configured(workers);
    tweak(&mut config);
    let router = Server::start(config).await.unwrap();
    router.wait_ready(PATIENCE).await;
    assert!(router.parts().state.routing.fleet.are_all_ready(), "not ready");
    router
}

/// Fetches a router's metrics page.
///
/// # Panics
/// If it cannot be fetched.
pub async fn metrics(router: &Server) -> Page {
    let page = client::admin(router.admin_address, "GET", "/metrics", &[], None).await;
    assert_eq!(page.status, 200);
    Page::read(page.text())
}

/// Waits until a router has nothing in flight, and checks that no counts are left over.
///
/// # Panics
/// If something remains in flight.
pub async fn at_rest(router: &Server) {
    let parts = router.parts();
    until("nothing in flight", || parts.proxy.in_flight() == 0).await;
    for worker in parts.state.routing.fleet.workers().iter() {
        until("no request counts on a worker", || {
            worker.with_load(|load| load.in_flight == 0)
        })
        .await;
        // A reading of the worker's own queue during an earlier request counts until it is stale.
        until(&format!("no work waits on {}", worker.name()), || {
            let now = parts.state.routing.clock.now();
            worker.with_load(|load| (load.pending.len(), load.pending.wait(now).0)) == (0, 0.0)
        })
        .await;
    }
}

/// Waits until the router admits exactly this number of requests at a time. The request of a client that has left may
/// be read late, and then holds a permit for a moment.
///
/// # Panics
/// If a permit is lost or made up.
pub async fn permits_are_back(router: &Server, permits: usize) {
    let proxy = &router.parts().proxy;
    until("no permit is lost, and none was made up", || {
        let held: Vec<_> = std::iter::repeat_with(|| proxy.acquire()).take(permits).collect();
        held.iter().all(Option::is_some) && proxy.acquire().is_none()
    })
    .await;
}

impl Fleet {
    /// Starts engines and a router, and waits until all of them are ready.
    ///
    /// # Panics
    /// If they do not start.
    pub async fn start(engines: Vec<EngineConfig>, tweak: impl FnOnce(&mut Config)) -> Self {
        let mut running = Vec::with_capacity(engines.len());
        for engine in engines {
            running.push(Engine::start(engine).await.unwrap());
        }
        let addresses: Vec<SocketAddr> = running.iter().map(Engine::addr).collect();
        let router = route(&addresses, tweak).await;
        Self {
            engines: running,
            router,
        }
    }

    /// Starts `count` quick engines and a router with defaults.
    pub async fn of(count: usize) -> Self {
        Self::start(vec![quick(); count], |_| {}).await
    }

    /// Returns the address of the data port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.router.address
    }

    /// Returns the router's worker of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn worker(&self, name: &str) -> Arc<Worker> {
        self.router.parts().state.routing.fleet.find(name).unwrap()
    }

    /// Returns the index of a worker's engine.
    ///
    /// # Panics
    /// If the worker is unknown.
    #[must_use]
    pub fn engine_of(&self, worker: &str) -> usize {
        self.engines
            .iter()
            .position(|engine| worker.split('/').next() == Some(&engine.addr().to_string()))
            .unwrap_or_else(|| panic!("no engine is called {worker}"))
    }

    /// Sends a chat request and waits for the head of its response.
    ///
    /// # Panics
    /// If there is no response.
    pub async fn open(&self, headers: Fields<'_>, body: &Value) -> Answer {
        client::open(self.address(), "POST", CHAT, headers, body.to_string())
            .await
            .expect("an answer")
    }

    /// Sends a chat request and reads the complete response.
    pub async fn chat(&self, headers: Fields<'_>, body: &Value) -> Whole {
        self.open(headers, body).await.whole().await
    }

    /// Sends the conversation's next turn with this user message, and adds the engine's reply to the conversation.
    /// Every other turn is streamed.
    ///
    /// # Panics
    /// If there is no successful response.
    pub async fn turn(&self, talk: &mut Conversation, headers: Fields<'_>, text: &str) -> CompletedTurn {
        talk.user(text);
        let streamed = talk.turns().is_multiple_of(2);
        let extra = json!({ "stream": streamed, "stream_options": { "include_usage": true } });
        let answer = self.chat(headers, &talk.body(extra)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (said, usage) = if streamed {
            let events = answer.events();
            assert_eq!(events.last().unwrap(), "[DONE]");
            let said: String = events
                .iter()
                .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
                .collect();
            (said, events[events.len() - 2]["usage"].clone())
        } else {
            let json = answer.json();
            let said = json["choices"][0]["message"]["content"].as_str().unwrap();
            (said.to_owned(), json["usage"].clone())
        };
        talk.assistant(&said);
        CompletedTurn {
            engine: self.engine_of(&answer.worker()),
            worker: answer.worker(),
            prompt: usage["prompt_tokens"].as_u64().unwrap(),
            cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        }
    }

    /// Fetches the metrics page.
    pub async fn metrics(&self) -> Page {
        metrics(&self.router).await
    }

    /// Waits until nothing is in flight.
    pub async fn at_rest(&self) {
        at_rest(&self.router).await;
    }

    /// Kills an engine, and waits until its port refuses connections.
    pub async fn kill(&self, engine: usize) {
        let engine = &self.engines[engine];
        engine.set_fault(Fault {
            die: true,
            ..Fault::default()
        });
        within(async {
            while TcpStream::connect(engine.addr()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Returns the number of completion requests received by each engine.
    #[must_use]
    pub fn received(&self) -> Vec<u64> {
        self.engines
            .iter()
            .map(|engine| engine.stats().received)
            .collect()
    }
}
