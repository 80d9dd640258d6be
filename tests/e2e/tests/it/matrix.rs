//! The effect on a client of each fault of a simulated engine, by the time at which it strikes. One table serves as
//! the specification, the test and a part of `docs/failure.md`.
//!
//! There are two workers: the first one used has the fault, the other one is healthy. Limits are short, so that a row
//! takes no longer than they do. An unstreamed reply is sent as a whole with its first byte, unless the fault breaks
//! it in the middle.

use std::fmt::Write as _;
use std::time::Duration;

use config::PolicyName;
use fleet::breaker::BreakerState;
use futures_util::future::join_all;
use serde_json::json;
use sim_engine::{EngineConfig, Fault};
use tailroute_e2e::client::{self, Answer, Whole};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::within;

use self::By::{Faulty, Other, Router};
use self::End::{Cut, CutSaying, Whole as Ended};
use self::Form::{Stream, Whole as WholeReply};
use self::When::{After, Before, Waiting};

/// Time for a worker's first byte, and between two pieces. A whole reply takes less than half of it.
const LIMIT: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The reply in one piece.
    Whole,
    /// The reply as events.
    Stream,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// The fault is present when the request comes.
    Before,
    /// It strikes when the worker has the request and has sent nothing.
    Waiting,
    /// It strikes after the first byte of the reply.
    After,
}

/// The worker that answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Faulty,
    Other,
    Router,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Whole,
    Cut,
    /// An error event, then the connection is cut.
    CutSaying(&'static str),
}

struct Row {
    fault: &'static str,
    form: Form,
    when: When,
    status: u16,
    by: By,
    end: End,
    /// Whether the request was retried on the other worker.
    retried: bool,
    /// Whether the failure is charged to the worker.
    charged: bool,
}

const fn row(
    fault: &'static str,
    form: Form,
    when: When,
    (status, by, end): (u16, By, End),
    (retried, charged): (bool, bool),
) -> Row {
    Row {
        fault,
        form,
        when,
        status,
        by,
        end,
        retried,
        charged,
    }
}

const NOTHING: (bool, bool) = (false, false);
const CHARGED: (bool, bool) = (false, true);
const RETRIED: (bool, bool) = (true, false);
const RETRIED_AND_CHARGED: (bool, bool) = (true, true);
const UNHURT: (u16, By, End) = (200, Faulty, Ended);
const ELSEWHERE: (u16, By, End) = (200, Other, Ended);

const TABLE: [Row; 48] = [
    row("die", WholeReply, Before, ELSEWHERE, RETRIED),
    row("die", Stream, Before, ELSEWHERE, RETRIED),
    row("die", WholeReply, Waiting, (502, Router, Ended), CHARGED),
    row(
        "die",
        Stream,
        Waiting,
        (200, Faulty, CutSaying("worker_failed")),
        CHARGED,
    ),
    row("die", WholeReply, After, (200, Faulty, Cut), CHARGED),
    row(
        "die",
        Stream,
        After,
        (200, Faulty, CutSaying("worker_failed")),
        CHARGED,
    ),
    row("hang", WholeReply, Before, (504, Router, Ended), CHARGED),
    row("hang", Stream, Before, (504, Router, Ended), CHARGED),
    row("hang", WholeReply, Waiting, UNHURT, NOTHING),
    row("hang", Stream, After, UNHURT, NOTHING),
    row("slow", WholeReply, Before, (504, Router, Ended), CHARGED),
    row(
        "slow",
        Stream,
        Before,
        (200, Faulty, CutSaying("worker_timeout")),
        CHARGED,
    ),
    row("slow", WholeReply, Waiting, (504, Router, Ended), CHARGED),
    row(
        "slow",
        Stream,
        After,
        (200, Faulty, CutSaying("worker_timeout")),
        CHARGED,
    ),
    row("status 400", WholeReply, Before, (400, Faulty, Ended), NOTHING),
    row("status 400", Stream, Before, (400, Faulty, Ended), NOTHING),
    row("status 429", WholeReply, Before, ELSEWHERE, RETRIED),
    row("status 429", Stream, Before, ELSEWHERE, RETRIED),
    row("status 500", WholeReply, Before, (500, Faulty, Ended), CHARGED),
    row("status 500", Stream, Before, (500, Faulty, Ended), CHARGED),
    row("status 503", WholeReply, Before, ELSEWHERE, RETRIED_AND_CHARGED),
    row("status 503", Stream, Before, ELSEWHERE, RETRIED_AND_CHARGED),
    row("status 500", WholeReply, Waiting, UNHURT, NOTHING),
    row("status 500", Stream, After, UNHURT, NOTHING),
    row(
        "reset_before_first_byte",
        WholeReply,
        Before,
        (502, Router, Ended),
        CHARGED,
    ),
    row(
        "reset_before_first_byte",
        Stream,
        Before,
        (502, Router, Ended),
        CHARGED,
    ),
    row("reset_before_first_byte", WholeReply, Waiting, UNHURT, NOTHING),
    row("reset_before_first_byte", Stream, After, UNHURT, NOTHING),
    row(
        "reset_after_tokens",
        WholeReply,
        After,
        (200, Faulty, Cut),
        CHARGED,
    ),
    row(
        "reset_after_tokens",
        Stream,
        After,
        (200, Faulty, CutSaying("worker_failed")),
        CHARGED,
    ),
    row(
        "stall_after_tokens",
        WholeReply,
        After,
        (200, Faulty, Cut),
        CHARGED,
    ),
    row(
        "stall_after_tokens",
        Stream,
        After,
        (200, Faulty, CutSaying("worker_timeout")),
        CHARGED,
    ),
    // HTTP has no way to tell that half of a JSON document is incomplete.
    row("end_after_tokens", WholeReply, After, UNHURT, NOTHING),
    row(
        "end_after_tokens",
        Stream,
        After,
        (200, Faulty, CutSaying("worker_failed")),
        CHARGED,
    ),
    row("refuse_health", WholeReply, Before, UNHURT, NOTHING),
    row("refuse_health", Stream, Before, UNHURT, NOTHING),
    row("refuse_health", WholeReply, Waiting, UNHURT, NOTHING),
    row("refuse_health", Stream, After, UNHURT, NOTHING),
    row("clear_cache", WholeReply, Before, UNHURT, NOTHING),
    row("clear_cache", Stream, Before, UNHURT, NOTHING),
    row("clear_cache", WholeReply, Waiting, UNHURT, NOTHING),
    row("clear_cache", Stream, After, UNHURT, NOTHING),
    row("drop_events", WholeReply, Before, UNHURT, NOTHING),
    row("drop_events", Stream, After, UNHURT, NOTHING),
    row("no_replay", WholeReply, Before, UNHURT, NOTHING),
    row("no_replay", Stream, After, UNHURT, NOTHING),
    row("none", WholeReply, Before, UNHURT, NOTHING),
    row("none", Stream, Before, UNHURT, NOTHING),
];

fn fault(name: &str) -> Fault {
    let none = Fault::default;
    let (name, status) = match name.split_once(' ') {
        Some((name, status)) => (name, Some(status.parse().unwrap())),
        None => (name, None),
    };
    match name {
        "none" => none(),
        "die" => Fault { die: true, ..none() },
        "hang" => Fault { hang: true, ..none() },
        "slow" => Fault { slow: 1e9, ..none() },
        "status" => Fault { status, ..none() },
        "reset_before_first_byte" => Fault {
            reset_before_first_byte: true,
            ..none()
        },
        "reset_after_tokens" => Fault {
            reset_after_tokens: Some(3),
            ..none()
        },
        "stall_after_tokens" => Fault {
            stall_after_tokens: Some(3),
            ..none()
        },
        "end_after_tokens" => Fault {
            end_after_tokens: Some(3),
            ..none()
        },
        "refuse_health" => Fault {
            refuse_health: true,
            ..none()
        },
        "clear_cache" => Fault {
            clear_cache: true,
            ..none()
        },
        "drop_events" => Fault {
            drop_events: true,
            ..none()
        },
        "no_replay" => Fault {
            no_replay: true,
            ..none()
        },
        other => panic!("no fault is called {other}"),
    }
}

/// Returns whether a fault present before the request strikes after the first byte.
fn strikes_by_itself(fault: &str) -> bool {
    fault.ends_with("_after_tokens")
}

/// An engine slow enough for a fault to strike in the middle of its reply.
fn unhurried() -> EngineConfig {
    EngineConfig {
        time_scale: 1.0,
        tpot_ms: 200.0,
        tpot_batch_ms: 0.0,
        default_output_tokens: 12,
        ..quick()
    }
}

async fn fleet() -> Fleet {
    Fleet::start(vec![unhurried(); 2], |config| {
        config.routing.policy = PolicyName::RoundRobin;
        config.limits.first_byte_timeout = LIMIT;
        config.limits.idle_timeout = LIMIT;
        config.failure.breaker_failures = 1;
        config.failure.breaker_share = 0.01;
        config.health.interval = Duration::from_secs(60);
    })
    .await
}

/// Sends the request, lets the fault strike at its time, and returns the response.
async fn ask_and_strike(fleet: &Fleet, row: &Row) -> Whole {
    let engine = &fleet.engines[0];
    let streamed = row.form == Stream;
    let body = ask("hello", json!({ "stream": streamed }));
    let early = row.when == Before || strikes_by_itself(row.fault);
    if early {
        engine.set_fault(fault(row.fault));
    } else if row.when == After && !streamed {
        // Half of the reply is sent, and the rest is held back until the fault strikes.
        engine.set_fault(fault("stall_after_tokens"));
    }
    if row.fault == "die" && early {
        fleet.kill(0).await;
    }
    let strike = async {
        if !early && row.when == Waiting && !streamed {
            within(engine.stats_when(|stats| stats.running + stats.waiting == 1)).await;
            engine.set_fault(fault(row.fault));
        }
    };
    let (mut answer, ()): (Answer, ()) = tokio::join!(fleet.open(&[], &body), strike);
    // The head of a stream comes before its first token, and shows that the engine has begun.
    if !early && row.when == Waiting && streamed {
        engine.set_fault(fault(row.fault));
    }
    let mut first = Vec::new();
    if !early && row.when == After {
        first = answer.chunk().await.unwrap().unwrap().to_vec();
        engine.set_fault(fault(row.fault));
    }
    let mut whole = answer.whole().await;
    first.extend_from_slice(&whole.body);
    whole.body = first.into();
    whole
}

async fn holds(row: &Row, fleet: Fleet) -> Result<(), String> {
    // The faulty engine is next, and has served before, so that idle connections exist.
    for _ in 0..2 {
        fleet.chat(&[], &ask("hello", json!({ "max_tokens": 1 }))).await;
    }
    fleet.at_rest().await;
    let whole = ask_and_strike(&fleet, row).await;
    if row.status != whole.status.as_u16() {
        return Err(format!("{whole:?}"));
    }
    let by = match whole
        .header("x-tailroute-worker")
        .map(|worker| fleet.engine_of(worker))
    {
        None => Router,
        Some(0) => Faulty,
        Some(_) => Other,
    };
    let end = match (whole.clean, row.form) {
        (true, _) => Ended,
        (false, WholeReply) => Cut,
        (false, Stream) => match whole.events().last() {
            Some(last) if last["error"].is_object() => match client::code_of(last).as_str() {
                "worker_failed" => CutSaying("worker_failed"),
                "worker_timeout" => CutSaying("worker_timeout"),
                _ => CutSaying("?"),
            },
            _ => Cut,
        },
    };
    if row.status == 200 && row.form == Stream && end == Ended && whole.events().last().unwrap() != "[DONE]" {
        return Err("it looks done, and is not".to_owned());
    }
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    let parts = fleet.router.parts();
    let retried = page.sum("tailroute_retries_total", &[]) > 0.0;
    let charged = page.sum("tailroute_breaker_opened_total", &[]) > 0.0;
    let open = parts.state.routing.fleet.workers()[0]
        .condition(parts.state.routing.clock.now())
        .breaker
        != BreakerState::Closed;
    let seen = (whole.status.as_u16(), by, end, retried, charged, open);
    let expected = (row.status, row.by, row.end, row.retried, row.charged, row.charged);
    if seen == expected {
        return Ok(());
    }
    Err(format!("saw {seen:?}, expected {expected:?}; {whole:?}"))
}

/// On one thread: a dead engine's idle connections are closed before the next request is sent.
#[tokio::test]
async fn each_fault_has_the_outcome_that_the_table_says() {
    // All fleets start first: starting takes time on a busy machine, and the limits are in real time.
    let fleets = join_all(TABLE.iter().map(|_| fleet())).await;
    let rows = TABLE.iter().zip(fleets);
    let ends = join_all(rows.map(|(row, fleet)| async move { (row, holds(row, fleet).await) })).await;
    let wrong: Vec<String> = ends
        .into_iter()
        .filter_map(|(row, end)| {
            let why = end.err()?;
            Some(format!("{} {:?} {:?}: {why}", row.fault, row.form, row.when))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fault_of_the_engine_is_in_the_table() {
    let switches = serde_json::to_value(Fault::default()).unwrap();
    for name in switches.as_object().unwrap().keys() {
        // Duration and share are parameters, not faults.
        let known = ["die_for_ms", "share"].contains(&name.as_str())
            || TABLE.iter().any(|row| row.fault.split(' ').next() == Some(name));
        assert!(known, "{name}");
    }
}

fn rendered() -> String {
    let mut page = String::from(
        "| fault | reply | strikes | client sees | from | ends | tried elsewhere | held against the worker |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in &TABLE {
        let form = if row.form == Stream { "stream" } else { "whole" };
        let when = match row.when {
            Before => "before the request",
            Waiting => "before the first byte",
            After => "after the first byte",
        };
        let by = match row.by {
            Faulty => "the worker",
            Other => "the other worker",
            Router => "the router",
        };
        let end = match row.end {
            Ended => "whole".to_owned(),
            Cut => "cut".to_owned(),
            CutSaying(code) => format!("error event `{code}`, cut"),
        };
        let yes = |flag| if flag { "yes" } else { "" };
        let _ = writeln!(
            page,
            "| {} | {form} | {when} | {} | {by} | {end} | {} | {} |",
            row.fault,
            row.status,
            yes(row.retried),
            yes(row.charged)
        );
    }
    page
}

#[test]
fn the_docs_have_the_table() {
    const BEGIN: &str =
        "<!-- the fault matrix: TAILROUTE_BLESS=1 cargo test -p tailroute-e2e --test it matrix -->\n";
    const END: &str = "<!-- end of the fault matrix -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failure.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the table's beginning");
    let (table, after) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(path, [before, BEGIN, &rendered(), END, after].concat()).unwrap();
        return;
    }
    assert_eq!(table, rendered(), "see the comment above the table");
}
