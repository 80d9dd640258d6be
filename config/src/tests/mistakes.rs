//! Problems are reported at their position, with a remedy.

use policy::units::{Millis, Tokens};
use proptest::prelude::*;

use super::*;

#[test]
fn an_unknown_key_is_answered_with_the_nearest_one() {
    refused(
        &format!("{ONE_WORKER}[routing]\npolcy = \"tail\"\n"),
        &["t.toml:4:1: routing.polcy: unknown key; did you mean `policy`?"],
    );
    refused(
        &format!("{ONE_WORKER}capacity-tokens = 5\n"),
        &["t.toml:3:1: workers[0].capacity-tokens: unknown key; did you mean `capacity_tokens`?"],
    );
    refused(
        &format!("{ONE_WORKER}[index]\nzzzzzzzzzz = 1\n"),
        &[
            "t.toml:4:1: index.zzzzzzzzzz: unknown key; known here: max_bytes, snapshot_interval_s, snapshot_max_age_s, snapshot_path",
        ],
    );
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest_one() {
    refused(
        &format!("{ONE_WORKER}[routing]\npolicy = \"cache-awre\"\n"),
        &[
            "t.toml:4:1: routing.policy: expected one of tail, round_robin, least_loaded, cache_aware, \
           cache_aware_smg, least_ttft, random, power_of_two, consistent_hash, prefix_hash, found \
           \"cache-awre\"; did you mean `cache_aware`?",
        ],
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "[server]\nlisten = \"localhost:80\"\n[limits]\nmax_body_bytes = \"32MiB\"\nretries = -1\n\
                [objective]\nshare = 1.5\n[[workers]]\nname = \"a b\"\nurl = \"gpu:8000\"\n[[workers]]\n";
    refused(
        text,
        &[
            "t.toml:2:1: server.listen: expected an address and a port such as 127.0.0.1:8080, found \
             \"localhost:80\"; write 127.0.0.1:80",
            "t.toml:4:1: limits.max_body_bytes: expected an integer of at least 1024, found \"32MiB\"",
            "t.toml:5:1: limits.retries: expected an integer of at least 0 and at most 16, found -1",
            "t.toml:7:1: objective.share: expected a number above 0 and below 1, found 1.5",
            "t.toml:9:1: workers[0].name: expected 1 to 64 visible ASCII characters without spaces",
            "t.toml:10:1: workers[0].url: no scheme; expected a url such as http://10.0.0.1:8000, found \
             \"gpu:8000\"; put http:// in front",
            "t.toml:11:1: workers[1].url: missing; expected a string",
        ],
    );
}

#[test]
fn overrides_are_of_classes_that_there_are_and_of_names_that_can_be_asked_for() {
    let text = format!(
        "{ONE_WORKER}[[objective.classes]]\nname = \"batch\"\nttft_ms = 9.0\n[routing.classes.bach]\npolicy = \"tail\"\n\
         [routing.named.\"a b\"]\nkappa_max = 0.5\n"
    );
    refused(
        &text,
        &[
            "t.toml:6:18: routing.classes.bach: there is no such class; the classes are batch, header; did you mean `batch`?",
            "t.toml:8:16: routing.named.a b: expected a name of 1 to 64 letters, digits, `-`, `_` and `.`",
            "t.toml:9:1: routing.named.a b.kappa_max: expected a number of at least 1 and at most 1000000, found 0.5",
        ],
    );
}

#[test]
fn what_a_request_may_set_has_the_range_of_the_weight() {
    for weight in WeightName::ALL {
        let with = |value: f64| {
            let name = weight.as_str();
            load_text(&format!("{ONE_WORKER}[routing.weights]\n{name} = {value:?}\n"))
        };
        assert!(with(weight.spec().most).is_ok(), "{weight:?}");
        assert!(with(weight.spec().most * 1.01).is_err(), "{weight:?}");
    }
}

#[test]
fn text_that_is_no_toml_is_placed() {
    let told = complaints(load_text("[server\nlisten = 3"));
    assert!(told[0].starts_with("t.toml:1:8: not TOML: "), "{told:?}");
}

#[test]
fn a_key_written_twice_is_refused() {
    let told = complaints(load_text(&format!("{ONE_WORKER}url = \"http://b:1\"\n")));
    assert!(
        told[0].starts_with("t.toml:3:1: not TOML: duplicate key"),
        "{told:?}"
    );
}

#[test]
fn a_list_that_is_written_as_a_section_is_answered_with_double_brackets() {
    let second = "[workers]\nurl = \"http://b:1\"\nname = \"b\"\ncapacity_tokens = 9\n";
    refused(
        &format!("[workers]\nurl = \"http://a:1\"\nname = \"a\"\n{second}"),
        &[
            "t.toml:4:2: not TOML: duplicate key; a section is written once, and each entry of a list begins with [[workers]]",
        ],
    );
    refused(
        "[workers]\nurl = \"http://a:1\"\n",
        &["t.toml:1:2: workers: expected a list, found a section; each entry begins with [[workers]]"],
    );
}

#[test]
fn a_value_with_a_unit_is_answered_with_what_values_are() {
    refused(
        &format!("{ONE_WORKER}capacity_tokens = 131072 tokens\nname = gpu\n"),
        &[
            "t.toml:3:19: not TOML: expected a number without a unit, a string in quotes, true or false",
            "t.toml:4:8: not TOML: expected a number without a unit, a string in quotes, true or false",
        ],
    );
}

#[test]
fn columns_count_characters() {
    refused(
        "workers = [{ models = [\"ä\"], url = \"http://a:1\", urk = 1 }]\n",
        &["t.toml:1:50: workers[0].urk: unknown key; did you mean `url`?"],
    );
}

#[test]
fn numbers_that_are_none_are_refused() {
    for number in ["nan", "inf", "-1", "1979-05-27", "true"] {
        let told = complaints(load_text(&format!("{ONE_WORKER}beta_ms = {number}\n")));
        assert!(
            told[0].contains("workers[0].beta_ms: expected a number of at least 0"),
            "{told:?}"
        );
    }
    let told = complaints(load_text(&format!(
        "{ONE_WORKER}capacity_tokens = 99999999999999999999\n"
    )));
    assert!(
        told[0].contains("found an integer of more than 64 bits"),
        "{told:?}"
    );
}

/// Generates text that is similar enough to a configuration to parse now and then.
fn toml_ish() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        "[a-z_]{1,8}",
        prop::sample::select(vec![
            "url",
            "listen",
            "workers",
            "routing",
            "weights",
            "policy",
            "share",
            "max_bytes"
        ])
        .prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        any::<bool>().prop_map(|flag| flag.to_string()),
        "\\PC{0,12}".prop_map(|text| format!("{text:?}")),
        Just("[{}, 3, [[]]]".to_owned()),
        Just("{ url = \"http://a:1\", name = 4 }".to_owned()),
    ];
    let line = prop_oneof![
        8 => (key.clone(), value).prop_map(|(key, value)| format!("{key} = {value}")),
        2 => key.clone().prop_map(|key| format!("[{key}]")),
        2 => key.prop_map(|key| format!("[[{key}]]")),
        1 => "\\PC{0,20}",
    ];
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_makes_it_panic_or_refuse_without_a_reason(text in toml_ish()) {
        if let Err(problems) = load_text(&text) {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(text in "(?s).{0,80}") {
        let _ = load_text(&text);
    }

    #[test]
    fn what_was_written_is_what_is_meant(
        ttft in 0.001f64..1e6, share in 0.001f64..0.999, capacity in 16u64..1 << 40, kappa in 1.0f64..100.0,
    ) {
        let text = format!(
            "{ONE_WORKER}capacity_tokens = {capacity}\n[objective]\nttft_ms = {ttft:?}\nshare = {share:?}\n\
             [routing]\nkappa_max = {kappa:?}\n"
        );
        let config = load_text(&text).unwrap();
        prop_assert_eq!(config.objective.ttft, Millis(ttft));
        prop_assert_eq!(config.objective.share, share);
        prop_assert_eq!(config.workers[0].capacity, Tokens(capacity));
        prop_assert_eq!(config.routing.kappa_max, kappa);
    }
}

#[test]
fn a_file_of_yaml_is_one_problem() {
    for text in [
        "server:\n  listen: 0.0.0.0:8080\nworkers:\n  - url: http://a:1\n",
        "# ours\n---\nserver:\n  a: b\n",
    ] {
        let told = complaints(load_text(text));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("not TOML: this looks like YAML; write `[section]`"),
            "{told:?}"
        );
    }
}

#[test]
fn a_share_in_percent_is_answered_with_the_share() {
    let told = complaints(load_text(&format!("{ONE_WORKER}[objective]\nshare = 95\n")));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("did you mean `0.95`?"), "{told:?}");
}

#[test]
fn a_section_without_its_parent_is_answered_with_its_path() {
    let told = complaints(load_text(&format!("{ONE_WORKER}[weights]\nlocality = 1\n")));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].ends_with("unknown key; did you mean `[routing.weights]`?"),
        "{told:?}"
    );
}
