//! What the other sections mean.

use policy::units::Millis;

use super::*;

#[test]
fn classes_of_objectives_have_names_and_models_of_their_own() {
    let class = |name: &str, model: &str| {
        format!("[[objective.classes]]\nname = {name:?}\nttft_ms = 50.0\nmodels = [{model:?}]\n")
    };
    let config = load_text(&format!("{ONE_WORKER}{}", class("fast", "m"))).unwrap();
    assert_eq!(config.objective.classes[0].ttft, Millis(50.0));
    let text = format!("{ONE_WORKER}{}{}", class("fast", "m"), class("fast", "m"));
    let told = complaints(load_text(&text));
    assert!(
        told[0].contains("`fast` is the name of another class already"),
        "{told:?}"
    );
    assert!(told[1].contains("`m` is of another class already"), "{told:?}");
    assert!(
        complaints(load_text(&format!("{ONE_WORKER}{}", class("a b", "m"))))[0].contains("visible ASCII")
    );
}

#[test]
fn the_two_ports_differ() {
    refused(
        &format!("server.listen = \"127.0.0.1:9090\"\n{ONE_WORKER}"),
        &["t.toml:1:1: admin.listen: 127.0.0.1:9090 is the data port as well; expected a port of its own"],
    );
}

#[test]
fn probes_must_not_overlap() {
    let told = complaints(load_text(&format!("{ONE_WORKER}[health]\ntimeout_ms = 5_000\n")));
    assert!(
        told[0].contains("health.timeout_ms: 5000 ms is longer than the 2000 ms between probes"),
        "{told:?}"
    );
}

#[test]
fn a_level_that_is_none_is_refused() {
    assert!(load_text(&format!("{ONE_WORKER}[log]\nlevel = \"warn,tailroute=dbug\"\n")).is_err());
    refused(
        &format!("{ONE_WORKER}[log]\nlevel = \"inof\"\n"),
        &[
            "t.toml:4:1: log.level: expected one of off, error, warn, info, debug, trace, found \"inof\"; did you \
           mean `info`?",
        ],
    );
    assert!(load_text(&format!("{ONE_WORKER}[log]\nlevel = \"warn,tailroute=debug\"\n")).is_ok());
}
