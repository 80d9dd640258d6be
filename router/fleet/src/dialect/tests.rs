use http::{HeaderName, HeaderValue};
use policy::cost::PrefillCost;
use policy::slo::feedback::{ObjectiveShare, ObservedTurns, WorkerObjective};
use serde_json::json;

use super::*;

const HINT: TurnHint = TurnHint {
    evict_first: Tokens(512),
    prompt: Tokens(2000),
    sequence: 7,
};

fn objective() -> SentObjective {
    let objective = WorkerObjective {
        xi_tokens: 712.5,
        ttft_objective_ms: 300.0,
        mix: vec![ObjectiveShare {
            ttft_objective_ms: 300.0,
            share: 1.0,
        }],
        observed: ObservedTurns {
            turns: 4,
            wait_ms: 40.0,
            p50_ms: 80.0,
            p95_ms: 210.0,
            late_share: 0.25,
        },
        cost: PrefillCost::linear(0.5, 20.0),
    };
    SentObjective {
        objective,
        next_prompt_tokens: 200,
        t_lru: true,
    }
}

/// Returns the field spliced into the body, with its value as JSON.
fn field(dialect: &dyn Dialect) -> (&'static str, Value) {
    match dialect.in_request(&HINT) {
        Some(Carried::Field { key, value }) => (key, serde_json::from_str(&value).unwrap()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_simulated_engine_reads_a_header() {
    let document =
        br#"{"dialect":"tailroute","objective":true,"evict_first_header":"x-tailroute-evict-first-tokens"}"#;
    let header = HeaderName::from_static("x-tailroute-evict-first-tokens");
    assert_eq!(
        Tailroute::of(document).unwrap().in_request(&HINT),
        Some(Carried::Header(header, HeaderValue::from_static("512")))
    );
}

#[test]
fn vllm_reads_its_xargs() {
    let document = br#"{"dialect":"tailroute","version":1,"engine":"vllm","engine_version":"0.32.0","model":"tiny",
        "hints":["trim","ended","protect"],"objective":true,"evict_first_header":null,
        "evict_first_xarg":"tailroute_evict_first_tokens","max_hints":4096,"block_size":32,"capacity_tokens":3168}"#;
    let carried = Carried::Member {
        object: "vllm_xargs",
        key: "tailroute_evict_first_tokens",
        value: "512".to_owned(),
    };
    let dialect = Tailroute::of(document).unwrap();
    assert_eq!(dialect.in_request(&HINT), Some(carried.clone()));
    assert_eq!(VllmXargs.in_request(&HINT), Some(carried));
    let told = dialect.objective(&objective(), 3).unwrap();
    assert_eq!((told.method, told.path), (Method::PUT, "/v1/tailroute/objective"));
    assert_eq!(
        told.body,
        json!({
            "xi_tokens": 712.5, "next_prompt_tokens": 200, "t_lru": true, "epoch": 3, "ttl_ms": 30_000.0,
            "ttft_objective_ms": 300.0, "mix": [{ "ttft_objective_ms": 300.0, "share": 1.0 }],
            "observed": { "turns": 4, "wait_ms": 40.0, "p50_ms": 80.0, "p95_ms": 210.0, "late_share": 0.25 },
            "cost": { "alpha_ms_per_token": 0.5, "beta_ms": 20.0, "gamma_ms_per_token2": 0.0 },
        })
    );
    assert!(dialect.hears_hints() && !VllmXargs.hears_hints());
}

#[test]
fn a_document_that_names_no_way_in_gets_nothing_within_requests() {
    assert_eq!(
        Tailroute::of(br#"{"dialect":"tailroute"}"#)
            .unwrap()
            .in_request(&HINT),
        None
    );
    let unknown = br#"{"dialect":"tailroute","evict_first_xarg":"something_else","objective":false}"#;
    assert_eq!(Tailroute::of(unknown).unwrap().in_request(&HINT), None);
    assert_eq!(Tailroute::of(unknown).unwrap().objective(&objective(), 3), None);
    for other in ["<html>", "{}", r#"{"dialect":"other"}"#] {
        assert!(Tailroute::of(other.as_bytes()).is_none(), "{other}");
    }
}

#[test]
fn the_envelope_of_hints_is_as_its_documents_have_it() {
    let (key, value) = field(&KvHints);
    assert_eq!(key, "kv_hints");
    assert_eq!(
        value,
        json!({
            "protocol_version": "0.1", "message_id": "tailroute-7",
            "actions": [{ "action_id": "tailroute-7-0", "action_type": "tailroute.evict_first",
                "action_version": "0.1", "payload": { "evict_first_tokens": 512 } }],
        })
    );
}

#[test]
fn the_retention_config_is_as_its_documents_have_it() {
    let (key, value) = field(&TensorrtLlm);
    assert_eq!(key, "kv_cache_retention_config");
    assert_eq!(
        value,
        json!({
            "token_range_retention_configs": [
                { "token_start": 0, "token_end": 1488, "priority": 35, "duration_ms": null },
                { "token_start": 1488, "token_end": null, "priority": 1, "duration_ms": null },
            ],
            "decode_retention_priority": 1, "decode_duration_ms": null,
        })
    );
    let all = TurnHint {
        prompt: Tokens(100),
        ..HINT
    };
    let Some(Carried::Field { value, .. }) = TensorrtLlm.in_request(&all) else {
        panic!("it speaks of every request");
    };
    let value: Value = serde_json::from_str(&value).unwrap();
    assert_eq!(
        value["token_range_retention_configs"].as_array().unwrap().len(),
        1
    );
}

/// Returns the tail that an engine evicts first by its own rule, where the router's own is of nine tokens.
fn tail(dialect: &dyn Dialect, told: Option<u64>) -> Option<Tokens> {
    dialect.own_tail(&OwnTail {
        told: &|| told.map(Tokens),
        ours: &|| Tokens(9),
    })
}

#[test]
fn sglang_trims_by_its_own_numbers_unless_they_can_be_set() {
    let info = |config: &str| {
        format!(r#"{{"radix_eviction_policy":"tlru","radix_eviction_policy_config":{config}}}"#)
    };
    let fixed = SglangTlru::of(info(r#"{"threshold":4000,"next_prompt_estimate":500}"#).as_bytes()).unwrap();
    assert_eq!(tail(&fixed, Some(9)), Some(Tokens(3500)));
    assert!(fixed.objective(&objective(), 3).is_none() && fixed.in_request(&HINT).is_none());
    let settable = info(
        r#""{\"threshold\":4000,\"next_prompt_estimate\":500}","internal_states":[{"tailroute":{"tlru_settable":true}}]"#,
    );
    let settable = SglangTlru::of(settable.as_bytes()).unwrap();
    for (answer, is_accepted) in [("[true]", true), ("[true,false]", false), ("{}", true)] {
        assert_eq!(settable.accepts(answer.as_bytes()), is_accepted, "{answer}");
    }
    // Those of its start until the first objective, which it applies to all conversations.
    assert_eq!(tail(&settable, None), Some(Tokens(3500)));
    assert_eq!(tail(&settable, Some(9)), Some(Tokens(9)));
    assert_eq!(tail(&settable, Some(0)), Some(Tokens::ZERO));
    let told = settable.objective(&objective(), 3).unwrap();
    assert_eq!((told.method, told.path), (Method::POST, "/set_internal_state"));
    assert_eq!(
        told.body,
        json!({ "server_args": { "tlru_threshold": 712, "tlru_next_prompt_estimate": 200 } })
    );
    let lru = SentObjective {
        t_lru: false,
        ..objective()
    };
    assert_eq!(
        settable.objective(&lru, 3).unwrap().body["server_args"]["tlru_threshold"],
        200
    );
    let expiring = info(
        r#"{"threshold":4000,"next_prompt_estimate":500},"internal_states":[{"tailroute":{"tlru_settable":true,"tlru_ttl_settable":true}}]"#,
    );
    let told = SglangTlru::of(expiring.as_bytes())
        .unwrap()
        .objective(&objective(), 3)
        .unwrap();
    assert_eq!(
        (
            &told.body["server_args"]["tlru_ttl_ms"],
            &told.body["server_args"]["tlru_epoch"]
        ),
        (&json!(30_000.0), &json!(3))
    );
    for other in [
        r#"{"radix_eviction_policy":"lru"}"#,
        "{}",
        "[]",
        "x",
        &info("null"),
    ] {
        assert_eq!(SglangTlru::of(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn nothing_is_said_to_a_worker_that_was_not_seen_to_listen() {
    for (trims, held) in [(false, Tokens::ZERO), (true, Tokens(9))] {
        let silent = Silent { trims };
        assert!(silent.in_request(&HINT).is_none() && silent.hints(&[]).is_none());
        assert!(silent.objective(&objective(), 3).is_none() && !silent.hears_hints());
        assert_eq!(tail(&silent, None), Some(held));
    }
}
