//! Counts are released with their request, however and whenever it ends.
//!
//! Requests are served by the router's own request path on a connection whose task panics at its k-th step, while the
//! request is handled or within its response; clients disconnect; deadlines pass; workers fail, hang and die. At the
//! end every count is zero: requests in flight, queued work per worker, slots in the router and its gate, unsettled
//! charges; and no breaker waits for a trial that will never end. Elsewhere, aborts leaked counts until a worker got
//! no requests: <https://github.com/vllm-project/router/pull/215>,
//! <https://github.com/vllm-project/production-stack/issues/1072>.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use admin::Admin;
use bytes::Bytes;
use config::{Key, Rate};
use fleet::breaker::BreakerState;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use policy::units::Millis;
use proptest::prelude::*;
use proxy::path::arrival::Peer;
use serde_json::json;
use sim_engine::{EngineConfig, Fault};
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, permits_are_back, probe_often, quick};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::{until, until_at_gate, within};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::admission::{bearer, key};

const ENGINES: usize = 3;
const PLACES: usize = 64;
/// The key's tokens, and the highest charge of one of these turns.
const ALLOWANCE: f64 = 1e6;
const TURN: f64 = 400.0;

/// A body or future that panics at its k-th step, without output on standard error.
struct Bomb<T> {
    inner: T,
    steps: usize,
}

impl<T> Bomb<T> {
    fn tick(&mut self) {
        match self.steps.checked_sub(1) {
            Some(left) => self.steps = left,
            None => std::panic::resume_unwind(Box::new("as planned")),
        }
    }
}

impl<F: Future + Unpin> Future for Bomb<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let bomb = self.get_mut();
        bomb.tick();
        Pin::new(&mut bomb.inner).poll(cx)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Bomb<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let bomb = self.get_mut();
        bomb.tick();
        Pin::new(&mut bomb.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Serves the router's request path on its own port. The handling of the n-th request and its response panic after
/// the n-th of these step counts, in rotation.
async fn mined(parts: Arc<Admin>, fuses: Vec<(usize, usize)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    let fuses = Arc::new(fuses);
    tokio::spawn(async move {
        while let Ok((stream, from)) = listener.accept().await {
            let (parts, next, fuses) = (Arc::clone(&parts), Arc::clone(&next), Arc::clone(&fuses));
            let peer = Arc::new(Peer::new(&parts.state.config.http, from.ip(), false));
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let (handling, answering) = fuses[next.fetch_add(1, Ordering::Relaxed) % fuses.len()];
                let inner = Box::pin(proxy::path::handle(Arc::clone(&parts.proxy), &peer, request));
                async move {
                    let answer = Bomb {
                        inner,
                        steps: handling,
                    };
                    let answer = answer.await;
                    Ok::<_, Infallible>(answer.map(|inner| {
                        let steps = answering;
                        Bomb { inner, steps }.boxed_unsync()
                    }))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    address
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Send a request, on the panicking port or the regular one, streamed or not, with this deadline if any.
    Ask {
        mined: bool,
        streamed: bool,
        deadline_ms: Option<u64>,
        leaves_after: Option<usize>,
    },
    Pass {
        mined: bool,
    },
    Fault(usize, u8),
    Pause(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (any::<bool>(), any::<bool>(), prop::option::weighted(0.3, 1_u64..40), prop::option::weighted(0.3, 0_usize..200))
            .prop_map(|(mined, streamed, deadline_ms, leaves_after)| Step::Ask { mined, streamed, deadline_ms, leaves_after }),
        1 => any::<bool>().prop_map(|mined| Step::Pass { mined }),
        2 => (0..ENGINES, 0_u8..8).prop_map(|(engine, fault)| Step::Fault(engine, fault)),
        2 => (0_usize..200).prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 20..80)
}

fn fault(kind: u8) -> Fault {
    let none = Fault::default;
    match kind {
        0 => Fault { die: true, ..none() },
        1 => Fault { hang: true, ..none() },
        2 => Fault {
            status: Some(500),
            ..none()
        },
        3 => Fault {
            status: Some(503),
            ..none()
        },
        4 => Fault {
            reset_before_first_byte: true,
            ..none()
        },
        5 => Fault {
            reset_after_tokens: Some(2),
            ..none()
        },
        6 => Fault {
            stall_after_tokens: Some(2),
            ..none()
        },
        _ => none(),
    }
}

async fn pause(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// Runs a step with any outcome; it only has to end.
async fn act(address: SocketAddr, seed: u64, step: Step) {
    match step {
        Step::Ask {
            streamed,
            deadline_ms,
            leaves_after,
            ..
        } => {
            let deadline = deadline_ms.map(|ms| ms.to_string());
            let bearer = bearer("a");
            let deadline = deadline.iter().map(|ms| ("x-request-timeout-ms", &**ms));
            let headers: Vec<(&str, &str)> = deadline.chain([("authorization", &*bearer)]).collect();
            let body = ask(
                &words(seed % 5, 40),
                json!({ "stream": streamed, "max_tokens": 8 }),
            )
            .to_string();
            let asked = async {
                if let Ok(answer) = client::open(address, "POST", CHAT, &headers, body).await {
                    answer.whole().await;
                }
            };
            match leaves_after {
                Some(turns) => tokio::select! {
                    biased;
                    () = pause(turns) => {}
                    () = asked => {}
                },
                None => asked.await,
            }
        }
        Step::Pass { .. } => {
            let bearer = bearer("a");
            let headers = [("authorization", &*bearer)];
            let body = "{\"prompt\":\"one\"}";
            if let Ok(answer) = client::open(address, "POST", "/tokenize", &headers, body).await {
                answer.whole().await;
            }
        }
        _ => {}
    }
}

async fn play(steps: Vec<Step>, fuses: Vec<(usize, usize)>, hedge: bool) {
    let engine = EngineConfig {
        time_scale: 200.0,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine; ENGINES], |config| {
        probe_often(config);
        config.health.timeout = Duration::from_millis(500);
        config.limits.first_byte_timeout = Duration::from_millis(60);
        config.limits.idle_timeout = Duration::from_millis(60);
        config.limits.max_in_flight = PLACES.try_into().unwrap();
        config.failure.breaker_failures = 2;
        config.failure.breaker_pause = Millis(5.0);
        config.failure.breaker_longest_pause = Millis(20.0);
        config.failure.slow_start = Millis(20.0);
        config.failure.hedge_after = hedge.then(|| Duration::from_millis(3));
        config.admission.max_concurrent_per_worker = NonZeroU32::new(2);
        config.admission.queue_timeout = Duration::from_millis(100);
        let tokens = Some(Rate {
            per_s: 1e-6,
            burst: ALLOWANCE,
        });
        config.keys = vec![Key { tokens, ..key("a") }];
    })
    .await;
    let parts = Arc::clone(fleet.router.parts());
    let mined = mined(Arc::clone(&parts), fuses).await;
    let mut running = JoinSet::new();
    let turns = steps
        .iter()
        .filter(|step| matches!(step, Step::Ask { .. }))
        .count();
    for (seed, step) in (0..).zip(steps) {
        match step {
            Step::Ask { mined: is_mined, .. } | Step::Pass { mined: is_mined } => {
                let address = if is_mined { mined } else { fleet.address() };
                running.spawn(act(address, seed, step));
            }
            Step::Fault(engine, kind) => fleet.engines[engine].set_fault(fault(kind)),
            Step::Pause(turns) => pause(turns).await,
        }
    }
    within(async { while running.join_next().await.is_some() {} }).await;
    for engine in &fleet.engines {
        engine.set_fault(Fault::default());
    }
    fleet.at_rest().await;
    for engine in &fleet.engines {
        within(engine.stats_when(|stats| stats.running + stats.waiting == 0)).await;
    }
    // A slot is released slightly before the counts it holds.
    until_at_gate(&parts.proxy.admission.gate, 0, 0).await;
    until("every charge is settled", || {
        parts.proxy.admission.keys().unsettled() == 0
    })
    .await;
    let paid = ALLOWANCE
        - parts
            .proxy
            .admission
            .keys()
            .left("a", parts.state.routing.clock.now())
            .unwrap();
    assert!(
        (0.0..=TURN * turns as f64).contains(&paid),
        "{paid} for {turns} turns"
    );
    permits_are_back(&fleet.router, PLACES).await;
    until("all are back", || parts.state.routing.fleet.are_all_ready()).await;
    until("no breaker waits for a trial that has ended", || {
        let routing = &parts.state.routing;
        let now = routing.clock.now();
        routing
            .fleet
            .workers()
            .iter()
            .all(|worker| worker.condition(now).breaker != BreakerState::Open)
    })
    .await;
    for worker in parts.state.routing.fleet.workers().iter() {
        // Admitted and dropped: the next trial is possible.
        for _ in 0..3 {
            until("it is let through", || {
                let clock = parts.state.routing.clock;
                let pass = worker.admit(clock.now(), false);
                pass.map(|pass| worker.send(clock, clock.now(), None, pass))
                    .is_some()
            })
            .await;
        }
    }
    assert!(
        parts.proxy.state.routing.retries.lock().left() >= -1e-9,
        "the budget is never overdrawn"
    );
    fleet.at_rest().await;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 16,
        // A script does not determine how threads interleave, so shrinking would chase a race that is gone.
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_count_is_zero_after_requests_end_in_any_way(
        steps in steps(),
        fuses in prop::collection::vec((0_usize..6, 0_usize..12), 1..20),
        hedge in any::<bool>(),
    ) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(play(steps, fuses, hedge));
    }
}
