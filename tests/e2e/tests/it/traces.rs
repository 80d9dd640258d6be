//! Traces as received by a collector: OTLP over real sockets, by gRPC and by HTTP.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use config::OtlpProtocol;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use policy::units::Millis;
use serde_json::json;
use sim_engine::Fault;
use tailroute_e2e::client::{self, CHAT, Fields};
use tailroute_e2e::fleet::{Fleet, quick, route};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};

use crate::tls::{Authority, in_front_of};

mod collector;

use collector::{Refusal, collector, grpc, hex, number, text, value};

const CLIENT: (&str, &str) = (
    "traceparent",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn to(collector: SocketAddr, protocol: OtlpProtocol) -> config::Traces {
    config::Traces {
        endpoint: format!("http://{collector}").parse().unwrap(),
        protocol,
        ca: None,
        headers: http::HeaderMap::new(),
        headers_file: None,
        service_name: "tailroute-test".to_owned(),
        keep_sampled: true,
        slowest_share: 0.0,
        share: 0.0,
        queue: 1000,
        timeout: Duration::from_secs(30),
    }
}

#[tokio::test]
async fn a_trace_has_a_span_per_stage_with_either_protocol() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let (received, address) = collector(protocol).await;
        let fleet = Fleet::start(vec![quick()], |config| {
            config.traces = Some(to(address, protocol))
        })
        .await;
        let body = ask(
            "what is this?",
            json!({ "stream": true, "stream_options": { "include_usage": true } }),
        );
        let headers: Fields<'_> = &[CLIENT, ("tracestate", "a=b"), ("x-session-id", "s")];
        assert_eq!(fleet.chat(headers, &body).await.status, 200);
        let spans = received.trace(TRACE).await;
        let own = &spans["chat sim"];
        assert_eq!(
            (own.kind, hex(&own.parent_span_id)),
            (2, "00f067aa0ba902b7".to_owned())
        );
        assert_eq!(text(own, "tailroute.kept"), "asked");
        assert_eq!(text(own, "gen_ai.request.model"), "sim");
        assert_eq!(text(own, "gen_ai.conversation.id"), "s");
        assert_eq!(number(own, "http.response.status_code"), 200);
        assert_eq!(number(own, "gen_ai.usage.output_tokens"), 16);
        assert!(number(own, "gen_ai.usage.input_tokens") > 0);
        for stage in ["receive", "parse", "wait", "match", "score", "learn"] {
            assert_eq!(spans[stage].parent_span_id, own.span_id, "{stage}");
        }
        let attempt = spans.values().find(|span| span.kind == 3).unwrap();
        assert_eq!(attempt.parent_span_id, own.span_id);
        assert!(value(attempt, "tailroute.predicted.ttft_ms").is_some());
        let engine = fleet.engines[0].addr();
        assert_eq!(text(attempt, "server.address"), engine.ip().to_string());
        assert_eq!(number(attempt, "server.port"), i64::from(engine.port()));
        for part in ["prefill", "stream"] {
            assert_eq!(spans[part].parent_span_id, attempt.span_id, "{part}");
        }
        for span in spans.values() {
            assert!(
                span.start_time_unix_nano <= span.end_time_unix_nano,
                "{}",
                span.name
            );
            assert!(
                span.start_time_unix_nano >= own.start_time_unix_nano,
                "{}",
                span.name
            );
        }
        assert!(spans["prefill"].end_time_unix_nano == spans["stream"].start_time_unix_nano);
        // The worker's spans are children of the attempt.
        let seen = fleet.engines[0].captured();
        let sent = seen.iter().rfind(|request| request.uri.path() == CHAT).unwrap();
        let parent = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
        assert_eq!(sent.headers["traceparent"], *parent);
        assert_eq!(sent.headers["tracestate"], "a=b");
        let everything = format!("{spans:?}");
        assert!(!everything.contains("what is this"), "no text of a prompt");
        fleet.at_rest().await;
        let page = fleet.metrics().await;
        assert_eq!(page.sum("tailroute_traces_total", &[("outcome", "asked")]), 1.0);
    }
}

#[tokio::test]
async fn failed_and_late_requests_are_sampled_with_their_cause_and_others_are_not() {
    let (received, address) = grpc().await;
    let fleet = Fleet::start(vec![quick(), quick()], |config| {
        config.traces = Some(to(address, OtlpProtocol::Grpc));
        config.objective.ttft = Millis(1e9);
        config.learning.costs = false;
    })
    .await;
    for seed in 0..20 {
        assert_eq!(
            fleet.chat(&[], &ask(&words(seed, 9), json!({}))).await.status,
            200
        );
    }
    // An objective that no turn can meet.
    let strict = [
        ("x-slo-ttft-ms", "0.001"),
        ("traceparent", &*CLIENT.1.replace("-01", "-00")),
    ];
    let streamed = ask("x", json!({ "stream": true }));
    assert_eq!(fleet.chat(&strict, &streamed).await.status, 200);
    let late = received.trace(TRACE).await;
    assert_eq!(text(&late["chat sim"], "tailroute.kept"), "objective");
    assert_eq!(
        value(&late["chat sim"], "tailroute.objective_missed"),
        Some(&Value::BoolValue(true))
    );
    assert_eq!(received.count(), 1, "none of the others is kept");

    let failing = Fault {
        status: Some(500),
        ..Fault::default()
    };
    fleet
        .engines
        .iter()
        .for_each(|engine| engine.set_fault(failing.clone()));
    let other = TRACE.replace("4bf9", "5bf9");
    let parent = CLIENT.1.replace(TRACE, &other).replace("-01", "-00");
    assert_eq!(
        fleet
            .chat(&[("traceparent", &parent)], &ask("x", json!({})))
            .await
            .status,
        500
    );
    let failed = received.trace(&other).await;
    let own = &failed["chat sim"];
    assert_eq!(text(own, "tailroute.kept"), "error");
    assert_eq!(text(own, "error.type"), "worker_error");
    assert_eq!(own.status.as_ref().unwrap().code, 2);
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    let traces = |outcome| page.sum("tailroute_traces_total", &[("outcome", outcome)]);
    assert_eq!(
        [traces("objective"), traces("error"), traces("discarded")],
        [1.0, 1.0, 20.0]
    );
}

/// Returns the trace ids in the metrics page's exemplars.
async fn exemplars(fleet: &Fleet) -> HashSet<String> {
    let accept = [("accept", "application/openmetrics-text;version=1.0.0")];
    let page = client::admin(fleet.router.admin_address, "GET", "/metrics", &accept, None).await;
    assert_eq!(page.status, 200);
    let named = page.text().split("trace_id=\"").skip(1);
    named.map(|rest| rest[..32].to_owned()).collect()
}

#[tokio::test]
async fn exemplars_name_sampled_traces_or_any_without_tracing() {
    let parent = |seed: u32| {
        let trace = TRACE.replace("4bf9", &format!("{seed:04x}"));
        (CLIENT.1.replace(TRACE, &trace).replace("-01", "-00"), trace)
    };
    let generous = |config: &mut config::Config| config.objective.ttft = Millis(1e9);
    let (_received, address) = grpc().await;
    let traced = Fleet::start(vec![quick()], |config| {
        generous(config);
        config.traces = Some(to(address, OtlpProtocol::Grpc));
    })
    .await;
    let plain = Fleet::start(vec![quick()], generous).await;
    // Only the second turn is late.
    let (late, wanted) = (parent(2), ["0.001", "1000000000"]);
    for fleet in [&traced, &plain] {
        for seed in 1..=4 {
            let (parent, _) = parent(seed);
            let objective = wanted[usize::from(seed != 2)];
            let headers = [("traceparent", &*parent), ("x-slo-ttft-ms", objective)];
            let body = ask(&words(seed.into(), 9), json!({ "stream": true }));
            assert_eq!(fleet.chat(&headers, &body).await.status, 200);
        }
        fleet.at_rest().await;
    }
    assert_eq!(exemplars(&traced).await, HashSet::from([late.1]));
    // Which turns share a bucket varies; the last one has an exemplar in any case.
    assert!(exemplars(&plain).await.contains(&parent(4).1));
}

#[tokio::test]
async fn a_tls_collector_is_verified_and_gets_reloadable_credentials() {
    let (folder, signs) = (tempfile::tempdir().unwrap(), Authority::new());
    let roots = |name: &str, authority: &Authority| {
        let path = folder.path().join(name);
        std::fs::write(&path, &authority.pem).unwrap();
        Some(path)
    };
    let (known, others) = (roots("known", &signs), roots("others", &Authority::new()));
    let shows = |token: &str| {
        let mut headers = http::HeaderMap::new();
        headers.insert("authorization", token.parse().unwrap());
        headers
    };
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let (received, address) = collector(protocol).await;
        let address = in_front_of(address, &signs.sign(), None).await;
        for (ca, is_taken) in [(&known, true), (&others, false)] {
            let settings = config::Traces {
                endpoint: format!("https://{address}").parse().unwrap(),
                ca: ca.clone(),
                headers: shows("Bearer first"),
                share: 1.0,
                ..to(address, protocol)
            };
            let fleet = Fleet::start(vec![quick()], |config| config.traces = Some(settings.clone())).await;
            let sent = async |outcome: &str, name: &str| {
                let labels: &[(&str, &str)] = if name.is_empty() { &[] } else { &[("why", name)] };
                assert_eq!(fleet.chat(&[], &ask("hi", json!({}))).await.status, 200);
                within(async {
                    while fleet.metrics().await.sum(outcome, labels) == 0.0 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                })
                .await;
            };
            if !is_taken {
                sent("tailroute_traces_lost_total", "export").await;
                assert_eq!(received.shown.lock().len(), 2, "nobody else was told anything");
                continue;
            }
            sent("tailroute_traces_sent_total", "").await;
            assert_eq!(*received.shown.lock(), ["Bearer first"]);
            let mut changed = (*fleet.router.parts().state.config).clone();
            changed.traces = Some(config::Traces {
                headers: shows("Bearer second"),
                ..settings
            });
            let reconfigured = tailroute::reload::reconfigure(fleet.router.parts(), &changed).unwrap();
            assert!(
                reconfigured.needs_restart.is_empty(),
                "{:?}",
                reconfigured.needs_restart
            );
            assert_eq!(fleet.chat(&[], &ask("hi", json!({}))).await.status, 200);
            until("the other one is shown", || {
                received.shown.lock().iter().any(|shown| shown == "Bearer second")
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_lost_attempt_and_its_retry_are_both_in_the_trace() {
    let (received, address) = grpc().await;
    let fleet = Fleet::start(vec![quick(), quick()], |config| {
        config.traces = Some(to(address, OtlpProtocol::Grpc));
        config.routing.policy = config::PolicyName::RoundRobin;
    })
    .await;
    let full = Fault {
        status: Some(503),
        ..Fault::default()
    };
    fleet.engines[0].set_fault(full);
    let ids = ["6bf9", "7bf9"].map(|head| TRACE.replace("4bf9", head));
    for id in &ids {
        let parent = CLIENT.1.replace(TRACE, id);
        assert_eq!(
            fleet
                .chat(&[("traceparent", &parent)], &ask("x", json!({})))
                .await
                .status,
            200
        );
        fleet.engines[0].set_fault(Fault::default());
    }
    let mut attempts = Vec::new();
    for id in &ids {
        let spans = received.trace(id).await;
        attempts.push(number(&spans["chat sim"], "tailroute.attempts"));
        for span in spans.values().filter(|span| span.kind == 3) {
            let lost = text(span, "tailroute.outcome") == "not_reached";
            let failed = span.status.as_ref().is_some_and(|status| status.code == 2);
            assert_eq!(failed, lost);
        }
    }
    assert_eq!(
        attempts,
        [2, 1],
        "the first met the full worker, which has room by the second"
    );
}

#[tokio::test]
async fn an_unreachable_collector_delays_no_request_and_dropped_spans_are_counted() {
    // A collector that accepts connections and sends nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let fleet = Fleet::start(vec![quick()], |config| {
        config.traces = Some(config::Traces {
            queue: 3,
            share: 1.0,
            timeout: Duration::from_secs(3600),
            ..to(address, OtlpProtocol::Http)
        });
    })
    .await;
    let lost = async || {
        let page = fleet.metrics().await;
        page.sum("tailroute_traces_lost_total", &[("why", "queue")])
    };
    // One batch is in transit, and the queue behind it is full.
    for seed in 0..400 {
        let answer = within(fleet.chat(&[], &ask(&words(seed, 5), json!({ "max_tokens": 1 })))).await;
        assert_eq!(answer.status, 200);
        if lost().await >= 5.0 {
            return;
        }
    }
    panic!("{} were dropped", lost().await);
}

#[tokio::test]
async fn a_batch_that_is_refused_for_now_is_sent_again_and_one_for_good_is_not() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let (received, address) = collector(protocol).await;
        let fleet = Fleet::start(vec![quick()], |config| {
            config.traces = Some(to(address, protocol))
        })
        .await;
        let became = async |name: &str| {
            let parent = CLIENT.1.replace("4bf9", "8bf9");
            let answer = fleet
                .chat(&[("traceparent", &parent)], &ask("x", json!({})))
                .await;
            assert_eq!(answer.status, 200);
            within(async {
                while fleet.metrics().await.sum(name, &[]) == 0.0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await;
            std::mem::take(&mut *received.refused.lock())
        };
        *received.refuses.lock() = vec![Refusal::ForNow];
        assert_eq!(became("tailroute_traces_sent_total").await, [Refusal::ForNow]);
        assert_eq!(received.count(), 1);
        *received.refuses.lock() = vec![Refusal::ForGood];
        assert_eq!(became("tailroute_traces_lost_total").await, [Refusal::ForGood]);
        assert_eq!(received.count(), 1);
    }
}

#[tokio::test]
async fn pending_spans_are_sent_before_the_router_exits() {
    let (received, address) = grpc().await;
    let engine = Upstream::start().await;
    let mut worker = engine;
    let router = route(&[worker.address], |config| {
        config.traces = Some(config::Traces {
            share: 1.0,
            ..to(address, OtlpProtocol::Grpc)
        });
    })
    .await;
    let asking = client::call(router.address, "GET", "/v1/batches", &[], "");
    let work = async { worker.next().await.answer("200 OK", "{}").await };
    let (answer, ()) = tokio::join!(asking, work);
    assert_eq!(answer.status, 200);
    within(router.drain()).await;
    assert_eq!(
        received.count(),
        1,
        "what is passed on unread has a trace as well"
    );
}
