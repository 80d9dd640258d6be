//! Lost batches of events, over real sockets: detection, and exact predictions afterwards.

use config::KvEvents;
use policy::ids::WorkerId;
use sim_engine::{Engine, EngineConfig, Fault, KvEventsConfig};
use tailroute_e2e::fleet::{Fleet, quick, route};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::wait::until;

use crate::{agreement, all_live, rendered, subscribed, told};

const REPLAYED: &str = "replayed";

/// An event in a stream's life.
#[derive(Clone, Copy, PartialEq)]
enum Event {
    Nothing,
    /// Batches are not sent.
    Lost,
    /// No batches are sent at the beginning, as when a subscription takes effect late.
    LostAtFirst,
    /// Batches were sent before the router connected.
    Late,
    /// The engine is a new process.
    Restart,
    /// The engine clears its cache and publishes that.
    Clear,
}

#[derive(Clone, Copy, PartialEq)]
enum Replay {
    /// The engine, all of them.
    All,
    /// The engine, the newest two.
    Two,
    /// An endpoint that does not answer.
    Silent,
    /// No endpoint.
    Nowhere,
}

struct Case {
    event: Event,
    replay: Replay,
    /// Labels of `tailroute_kv_stream_total` that must count, and must not.
    seen: &'static [&'static str],
    never: &'static [&'static str],
}

impl Case {
    fn name(&self) -> String {
        format!("{:?}", (self.event as u8, self.replay as u8))
    }

    /// Waits until everything that must count has counted since this page.
    async fn shows(&self, fleet: &Fleet, since: &Page) {
        until(&format!("case {} shows", self.name()), || {
            let page = rendered(&fleet.router);
            self.seen
                .iter()
                .all(|what| stream(&page, what) > stream(since, what))
        })
        .await;
    }

    /// Checks that what must not count has not counted since this page.
    async fn shows_nothing_else(&self, fleet: &Fleet, since: &Page) {
        let (name, page) = (self.name(), fleet.metrics().await);
        for what in self.never.iter().filter(|what| **what != REPLAYED) {
            assert_eq!(stream(&page, what), stream(since, what), "case {name}: {what}");
        }
        if self.never.contains(&REPLAYED) {
            // A heartbeat may ask while a batch is on its way, which then comes twice.
            until(&format!("case {name}: only what also comes is replayed"), || {
                let page = rendered(&fleet.router);
                let counted = |what| stream(&page, what) - stream(since, what);
                counted(REPLAYED) <= counted("duplicate")
            })
            .await;
        }
    }
}

fn stream(page: &Page, what: &str) -> f64 {
    page.sum("tailroute_kv_stream_total", &[("what", what)])
}

const CASES: [Case; 11] = [
    case(
        Event::Nothing,
        Replay::All,
        &[],
        &["gap", "forget", "restart", "lost", "replayed"],
    ),
    case(
        Event::Nothing,
        Replay::Nowhere,
        &[],
        &["gap", "forget", "restart", "lost"],
    ),
    case(
        Event::Lost,
        Replay::All,
        &["replayed"],
        &["forget", "restart", "lost"],
    ),
    case(
        Event::Lost,
        Replay::Two,
        &["forget", "replayed"],
        &["restart", "lost"],
    ),
    case(
        Event::Lost,
        Replay::Silent,
        &["gap", "unanswered", "forget"],
        &["restart", "replayed"],
    ),
    case(
        Event::Lost,
        Replay::Nowhere,
        &["gap", "forget"],
        &["restart", "replayed", "lost"],
    ),
    case(
        Event::LostAtFirst,
        Replay::All,
        &["replayed"],
        &["forget", "restart", "lost"],
    ),
    case(
        Event::LostAtFirst,
        Replay::Nowhere,
        &["gap", "forget"],
        &["restart", "replayed", "lost"],
    ),
    case(
        Event::Late,
        Replay::All,
        &["replayed"],
        &["gap", "forget", "restart", "lost"],
    ),
    case(Event::Restart, Replay::All, &["restart", "forget"], &[]),
    case(
        Event::Clear,
        Replay::All,
        &[],
        &["gap", "forget", "restart", "lost"],
    ),
];

const fn case(
    event: Event,
    replay: Replay,
    seen: &'static [&'static str],
    never: &'static [&'static str],
) -> Case {
    Case {
        event,
        replay,
        seen,
        never,
    }
}

async fn turns(fleet: &Fleet, talks: &mut [Conversation], round: u64) {
    for (at, talk) in (0..).zip(talks) {
        fleet
            .turn(
                talk,
                &[("x-session-id", &format!("talk-{at}"))],
                &words(10 * round + at, 40),
            )
            .await;
        fleet.at_rest().await;
    }
}

async fn start(case: &Case, talks: &mut [Conversation]) -> Fleet {
    let engine = EngineConfig {
        kv_events: Some(KvEventsConfig {
            buffer: if case.replay == Replay::Two { 2 } else { 10_000 },
            ..KvEventsConfig::default()
        }),
        ..quick()
    };
    let engine = Engine::start(engine).await.unwrap();
    let (address, endpoint) = (engine.addr(), engine.kv_source().unwrap().endpoint.clone());
    if case.event == Event::Late {
        let router = route(&[address], |config| config.workers[0].kv_events = KvEvents::Off).await;
        let early = Fleet {
            engines: vec![engine],
            router,
        };
        turns(&early, talks, 1).await;
        let Fleet { engines, router } = early;
        router.drain().await;
        let router = route(&[address], |_| {}).await;
        return Fleet { engines, router };
    }
    if case.event == Event::LostAtFirst {
        engine.set_fault(lost());
    }
    let router = route(&[address], |config| {
        if case.replay == Replay::Nowhere {
            config.workers[0].kv_events = KvEvents::At {
                endpoint,
                replay: None,
            };
        }
    })
    .await;
    Fleet {
        engines: vec![engine],
        router,
    }
}

fn lost() -> Fault {
    Fault {
        drop_events: true,
        ..Fault::default()
    }
}

async fn happen(case: &Case, fleet: &Fleet, talks: &mut [Conversation]) {
    let engine = &fleet.engines[0];
    match case.event {
        Event::Nothing | Event::Late => {}
        Event::Lost | Event::LostAtFirst => {
            engine.set_fault(Fault {
                no_replay: case.replay == Replay::Silent,
                ..lost()
            });
            turns(fleet, talks, 2).await;
            engine.set_fault(Fault {
                no_replay: case.replay == Replay::Silent,
                ..Fault::default()
            });
        }
        Event::Restart => {
            engine.set_fault(Fault {
                die: true,
                die_for_ms: Some(1),
                ..Fault::default()
            });
            let knowledge = &fleet.router.parts().state.routing.knowledge;
            let blocks = || knowledge.evidence(WorkerId(0), |evidence| evidence.blocks());
            until("what the old process held is forgotten", || blocks() == Some(0)).await;
            until("the engine is back", || {
                std::net::TcpStream::connect(engine.addr()).is_ok()
            })
            .await;
        }
        Event::Clear => engine.set_fault(Fault {
            clear_cache: true,
            ..Fault::default()
        }),
    }
}

/// Other routers missed lost events: <https://github.com/llm-d/llm-d-router/issues/1737>,
/// <https://github.com/ai-dynamo/dynamo/pull/11194>.
#[tokio::test]
async fn every_loss_is_detected_and_repaired() {
    for case in &CASES {
        let name = case.name();
        let mut talks: Vec<Conversation> = (0..3).map(|seed| Conversation::new(&words(seed, 200))).collect();
        let fleet = start(case, &mut talks).await;
        all_live(&fleet).await;
        if case.event == Event::Late {
            case.shows(&fleet, &Page::default()).await;
            case.shows_nothing_else(&fleet, &Page::default()).await;
        }
        if case.event != Event::LostAtFirst {
            // The second time, nothing is left to be replayed of the first.
            for _ in 0..2 {
                subscribed(&fleet).await;
            }
        }
        let beginning = match case.event {
            Event::LostAtFirst => Page::default(),
            _ => fleet.metrics().await,
        };
        turns(&fleet, &mut talks, 3).await;
        happen(case, &fleet, &mut talks).await;
        // A loss shows with the next batch; a turn binds each conversation to its blocks again.
        turns(&fleet, &mut talks, 4).await;
        if case.event != Event::Late {
            case.shows(&fleet, &beginning).await;
        }
        turns(&fleet, &mut talks, 5).await;
        let before = fleet.metrics().await;
        turns(&fleet, &mut talks, 6).await;
        let page = fleet.metrics().await;
        case.shows_nothing_else(&fleet, &beginning).await;
        let exact = |page| {
            Page::sum(
                page,
                "tailroute_cached_tokens_agreement_total",
                &[("agreement", "exact")],
            )
        };
        assert_eq!(
            exact(&page) - exact(&before),
            3.0,
            "case {name}: {:?}",
            agreement(&page)
        );
        // Blocks stored before the known ones have no known parents, so such conversations are predicted by the mirror.
        if case.replay == Replay::All {
            assert_eq!(told(&page) - told(&before), 3.0, "case {name}");
        }
    }
}
