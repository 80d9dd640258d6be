//! The time from a client's disconnect to the end of its request on the engine, 200 times in each phase of a request.
//!
//! A cancelled request that continues keeps a GPU busy for nothing:
//! <https://github.com/sgl-project/sglang/issues/6280>, <https://github.com/smg-project/smg/issues/2136>. `make
//! disconnect` on a quiet machine requires at most 10 ms for each; here, where tests share the machine, the bound is
//! one that no scheduler should reach.
//!
//! Also covers the ways in which a client can disconnect, 20 times each: it closes its connection, resets it, or
//! closes it for writing only; while sending its head, in the router's queue, before the first byte of a response,
//! mid-stream; with nothing after its request, with an empty line, with another request; or it resets an HTTP/2
//! stream. Closing for writing counts as a disconnect: on the wire it is the same FIN, and a router that waited for
//! more would work for disconnected clients.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests and their helpers, whose reports go to standard output"
)]

use std::time::{Duration, Instant};

use serde_json::json;
use sim_engine::{EngineConfig, Stats};
use tailroute_e2e::client::{self, CHAT, H2};
use tailroute_e2e::environment::is_strict;
use tailroute_e2e::fleet::{Fleet, stuck_in_decode, stuck_in_prefill};
use tailroute_e2e::raw::request;
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::{until, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const TRIALS: u64 = 200;
/// The promised bound.
const SOON: Duration = Duration::from_millis(10);
/// The bound on a busy machine.
const AT_ALL: Duration = Duration::from_secs(5);

/// The phase of a request when its client disconnects.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// In the router's queue: no engine receives it, and its slot is free afterwards.
    Waiting,
    /// In the engine's queue, behind another request.
    Queued,
    /// Before its first token.
    Prefill,
    Stream,
    /// Mid-stream over HTTP/2: the stream is reset and the connection stays.
    H2Stream,
    /// While an unstreamed response is generated.
    Whole,
}

impl Phase {
    fn engine(self) -> EngineConfig {
        match self {
            Self::Queued | Self::Prefill => stuck_in_prefill(),
            Self::Waiting | Self::Stream | Self::H2Stream | Self::Whole => stuck_in_decode(),
        }
    }

    fn is_reached(self, before: &Stats, now: &Stats) -> bool {
        match self {
            Self::Queued | Self::Prefill => now.received > before.received && now.running + now.waiting > 0,
            _ => now.generation_tokens > before.generation_tokens,
        }
    }
}

/// Runs one trial in the router's own queue.
async fn trial_in_front(fleet: &Fleet, number: u64) -> Duration {
    let gate = &fleet.router.parts().proxy.admission.gate;
    let before = (gate.counts(), fleet.received());
    let body = ask(&words(number, 20), json!({ "stream": true })).to_string();
    let asking = tokio::spawn(client::open(fleet.address(), "POST", CHAT, &[], body));
    within(async {
        while gate.counts() == before.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let left = Instant::now();
    asking.abort();
    within(async {
        while gate.counts() != before.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let took = left.elapsed();
    assert_eq!(fleet.received(), before.1, "no engine has heard of it");
    took
}

/// Runs one trial. Returns the time it took.
async fn trial(fleet: &Fleet, phase: Phase, number: u64) -> Duration {
    let engine = &fleet.engines[0];
    let before = engine.stats();
    let stream = phase != Phase::Whole;
    let body = ask(&words(number, 20), json!({ "stream": stream })).to_string();
    let reached = |now: &Stats| phase.is_reached(&before, now) && now.received > before.received;
    let aborted = before.aborted.total() + 1;
    let left = match phase {
        Phase::H2Stream => {
            let h2 = H2::connect(fleet.address()).await;
            let answer = h2.post(CHAT, body).await;
            within(engine.stats_when(reached)).await;
            let left = Instant::now();
            drop(answer);
            within(engine.stats_when(|stats| stats.aborted.total() == aborted)).await;
            return left.elapsed();
        }
        Phase::Stream => {
            let mut answer = client::open(fleet.address(), "POST", CHAT, &[], body)
                .await
                .unwrap();
            answer.chunk().await.unwrap().unwrap();
            within(engine.stats_when(reached)).await;
            let left = Instant::now();
            drop(answer);
            left
        }
        _ => {
            let asking = client::open(fleet.address(), "POST", CHAT, &[], body);
            tokio::pin!(asking);
            let arrived = engine.stats_when(reached);
            tokio::select! {
                _ = within(arrived) => {}
                // The head of a stream comes before its first token.
                answer = &mut asking => {
                    let answer = answer.unwrap();
                    within(engine.stats_when(reached)).await;
                    let left = Instant::now();
                    drop(answer);
                    within(engine.stats_when(|stats| stats.aborted.total() == aborted)).await;
                    return left.elapsed();
                }
            }
            // Leaving this block disconnects.
            Instant::now()
        }
    };
    within(engine.stats_when(|stats| stats.aborted.total() == aborted)).await;
    left.elapsed()
}

async fn trials(phase: Phase) -> Vec<Duration> {
    let fleet = Fleet::start(vec![phase.engine()], |config| {
        // Disables all other wake-ups.
        config.health.interval = Duration::from_secs(3600);
        config.health.queue_interval = None;
        if phase == Phase::Waiting {
            config.admission.max_concurrent_per_worker = std::num::NonZeroU32::new(1);
        }
    })
    .await;
    let first = matches!(phase, Phase::Waiting | Phase::Queued)
        .then(|| ask("the first in the queue", json!({ "stream": true })).to_string())
        .map(|body| tokio::spawn(client::open(fleet.address(), "POST", CHAT, &[], body)));
    if first.is_some() {
        within(fleet.engines[0].stats_when(|stats| stats.running + stats.waiting == 1)).await;
    }
    let mut times = Vec::new();
    for number in 0..TRIALS {
        times.push(match phase {
            Phase::Waiting => trial_in_front(&fleet, number).await,
            _ => trial(&fleet, phase, number).await,
        });
        let rest = usize::from(first.is_some());
        until("the router has let go of it", || {
            fleet.router.parts().proxy.in_flight() == rest
        })
        .await;
    }
    if let Some(first) = first {
        first.abort();
        drop(first.await);
    }
    fleet.at_rest().await;
    times.sort();
    times
}

#[test]
fn a_disconnect_aborts_the_request_on_the_engine_at_once() {
    let limit = if is_strict() { SOON } else { AT_ALL };
    for phase in [
        Phase::Waiting,
        Phase::Queued,
        Phase::Prefill,
        Phase::Stream,
        Phase::H2Stream,
        Phase::Whole,
    ] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let times = runtime.block_on(async move { tokio::spawn(trials(phase)).await.unwrap() });
        let ms = |at: usize| times[at].as_secs_f64() * 1e3;
        let (half, most) = (times.len() / 2, times.len() - 1);
        println!(
            "{{\"phase\":\"{phase:?}\",\"trials\":{},\"p50_ms\":{:.2},\"p99_ms\":{:.2},\"max_ms\":{:.2}}}",
            times.len(),
            ms(half),
            ms(times.len() * 99 / 100),
            ms(most)
        );
        assert!(times[most] <= limit, "{phase:?}: {:?}", times[most]);
    }
}

/// The way in which a client disconnects.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Fin,
    Reset,
    HalfClose,
    H2Reset,
}

/// The progress of its request at that time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Head,
    Queue,
    FirstByte,
    Stream,
}

/// A case: manner, moment, and the bytes sent after the request.
#[derive(Clone, Copy, Debug)]
struct Form(Manner, Moment, &'static str);

const FORM_TRIALS: u64 = 20;
const CRLF: &str = "\r\n";
const NEXT: &str = "GET /v1/models HTTP/1.1\r\nhost: router.test\r\n\r\n";

fn forms() -> Vec<Form> {
    use {Manner::*, Moment::*};
    let mut forms = Vec::new();
    for moment in [Head, Queue, FirstByte, Stream] {
        forms.extend([Fin, Reset, HalfClose].map(|manner| Form(manner, moment, "")));
    }
    for moment in [Queue, FirstByte, Stream] {
        for behind in [CRLF, NEXT] {
            forms.extend([Fin, Reset, HalfClose].map(|manner| Form(manner, moment, behind)));
        }
        forms.push(Form(H2Reset, moment, ""));
    }
    forms
}

/// A client that can disconnect in every way.
enum Leaver {
    One(TcpStream),
    Two(H2, tokio::task::JoinHandle<()>),
}

impl Leaver {
    async fn ask(fleet: &Fleet, Form(manner, moment, behind): Form, number: u64) -> Self {
        let body = ask(&words(number, 20), json!({ "stream": moment == Moment::Stream })).to_string();
        if manner == Manner::H2Reset {
            let h2 = H2::connect(fleet.address()).await;
            let stream = h2.again();
            let asking = tokio::spawn(async move {
                let _answer = stream.post(CHAT, body).await;
                std::future::pending::<()>().await;
            });
            return Self::Two(h2, asking);
        }
        let mut stream = TcpStream::connect(fleet.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let length = format!("content-length: {}", body.len());
        let mut bytes = request(&format!("POST {CHAT}"), &[&length], &body);
        bytes.extend_from_slice(behind.as_bytes());
        if moment == Moment::Head {
            bytes.truncate(40);
        }
        stream.write_all(&bytes).await.unwrap();
        Self::One(stream)
    }

    /// Disconnects. Returns the half-closed connection, if there is one.
    async fn leave(self, manner: Manner) -> Option<Self> {
        match self {
            Self::One(mut stream) if manner == Manner::HalfClose => {
                stream.shutdown().await.unwrap();
                Some(Self::One(stream))
            }
            Self::One(stream) => {
                if manner == Manner::Reset {
                    stream.set_zero_linger().unwrap();
                }
                None
            }
            Self::Two(h2, asking) => {
                asking.abort();
                Some(Self::Two(h2, asking))
            }
        }
    }
}

/// Runs one trial. Returns the time it took, if the request was aborted.
async fn form_trial(fleet: &Fleet, form: Form, number: u64) -> Option<Duration> {
    let Form(manner, moment, _) = form;
    let (engine, gate) = (&fleet.engines[0], &fleet.router.parts().proxy.admission.gate);
    let (before, counts) = (engine.stats(), gate.counts());
    let leaver = Leaver::ask(fleet, form, number).await;
    let reached = |now: &Stats| now.received > before.received && now.running + now.waiting > 0;
    match moment {
        Moment::Head => {}
        Moment::Queue => until("it waits", || gate.counts() != counts).await,
        Moment::FirstByte => {
            within(engine.stats_when(reached)).await;
        }
        Moment::Stream => {
            let begun = |now: &Stats| reached(now) && now.generation_tokens > before.generation_tokens;
            within(engine.stats_when(begun)).await;
        }
    }
    let left = Instant::now();
    let rest = leaver.leave(manner).await;
    let gone = async {
        match (moment, rest) {
            (Moment::Head, Some(Leaver::One(mut stream))) => {
                let mut said = Vec::new();
                // A reset closes the connection too.
                let _ = stream.read_to_end(&mut said).await;
            }
            (Moment::Head, _) => assert_eq!(engine.stats().received, before.received),
            (Moment::Queue, _rest) => {
                while gate.counts() != counts {
                    tokio::task::yield_now().await;
                }
                assert_eq!(
                    engine.stats().received,
                    before.received,
                    "no engine has heard of it"
                );
            }
            (_, _rest) => {
                let aborted = before.aborted.total() + 1;
                engine.stats_when(|now| now.aborted.total() == aborted).await;
            }
        }
    };
    let is_gone = tokio::time::timeout(AT_ALL, gone).await.is_ok();
    is_gone.then(|| left.elapsed())
}

/// Returns the times of the trials in which the request was aborted. A case that fails once is not tried again.
async fn form_trials(form: Form) -> Vec<Duration> {
    let Form(_, moment, _) = form;
    let engine = match moment {
        Moment::FirstByte => stuck_in_prefill(),
        _ => stuck_in_decode(),
    };
    let fleet = Fleet::start(vec![engine], |config| {
        // Disables all other wake-ups.
        config.health.interval = Duration::from_secs(3600);
        config.health.queue_interval = None;
        if moment == Moment::Queue {
            config.admission.max_concurrent_per_worker = std::num::NonZeroU32::new(1);
        }
    })
    .await;
    let first = (moment == Moment::Queue)
        .then(|| ask("the first in the queue", json!({ "stream": true })).to_string())
        .map(|body| tokio::spawn(client::open(fleet.address(), "POST", CHAT, &[], body)));
    let rest = usize::from(first.is_some());
    if first.is_some() {
        within(fleet.engines[0].stats_when(|stats| stats.running == 1)).await;
    }
    let mut times = Vec::new();
    for number in 0..FORM_TRIALS {
        let Some(took) = form_trial(&fleet, form, number).await else {
            break;
        };
        times.push(took);
        until("the router has let go of it", || {
            fleet.router.parts().proxy.in_flight() == rest
        })
        .await;
    }
    if let Some(first) = first {
        first.abort();
        drop(first.await);
    }
    times
}

#[test]
fn every_form_of_disconnect_aborts_the_request_at_once() {
    let limit = if is_strict() { SOON } else { AT_ALL };
    let (mut in_time, mut all) = (0, 0);
    for form in forms() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let times = runtime.block_on(async move { tokio::spawn(form_trials(form)).await.unwrap() });
        let kept = times.iter().filter(|took| **took <= limit).count() as u64;
        let worst = times
            .iter()
            .max()
            .map_or(f64::NAN, |took| took.as_secs_f64() * 1e3);
        let Form(manner, moment, behind) = form;
        let figures = json!({
            "leaves": format!("{manner:?}"), "at": format!("{moment:?}"), "behind": behind,
            "trials": FORM_TRIALS, "in_time": kept, "max_ms": worst,
        });
        println!("{figures}");
        (in_time, all) = (in_time + kept, all + FORM_TRIALS);
    }
    assert_eq!(in_time, all, "not known within {limit:?} each time");
}
