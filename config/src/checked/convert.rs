//! Converts the written configuration to the checked one.
//!
//! The schema has already checked ranges of single numbers. This checks texts with a syntax of their own and values
//! that must agree with each other. A wrong value is reported and replaced by a default, so that the rest is still
//! checked; a configuration with such a replacement is never returned.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use policy::units::Millis;

use super::admin::admin;
use super::admission::admission;
use super::checker::Checker;
use super::discovery::discovery;
use super::endpoint_picker::endpoint_picker;
use super::failure::failure;
use super::fleet::fleet;
use super::health::health;
use super::http::http;
use super::keys::keys;
use super::limits::limits;
use super::objective::objective;
use super::routing::check_overrides;
use super::tls::tls;
use super::traces::traces;
use super::{Capture, Config, Explain, Hints, IndexConfig, Learning, Log, Server, Snapshot, routing, worker};
use crate::problem::{Origin, Problems};
use crate::written;

/// Checks a written configuration. The result is valid only if `problems` stays empty.
pub(crate) fn check(
    file: written::File,
    origins: &BTreeMap<String, Origin>,
    problems: &mut Problems,
) -> Config {
    let mut checker = Checker { origins, problems };
    let server = Server {
        listen: checker.address("server.listen", &file.server.listen),
        handover: (!file.server.handover.is_empty()).then(|| file.server.handover.into()),
    };
    let admin = admin(file.admin, &mut checker);
    if server.listen == admin.listen && server.listen.port() != 0 {
        let what = format!(
            "{} is the data port as well; expected a port of its own",
            admin.listen
        );
        checker.report("admin.listen", what, None);
    }
    let discovery = discovery(file.discovery, &mut checker);
    if file.workers.is_empty() && !discovery.is_on() {
        let hint =
            "add a [[workers]] section with a url, give --worker http://host:port, or set up [discovery]"
                .to_owned();
        checker.report(
            "workers",
            "no workers; expected at least one".to_owned(),
            Some(hint),
        );
    }
    let urls: Vec<_> = file.workers.iter().map(|worker| worker.url.clone()).collect();
    let workers = worker::check_all(file.workers, &mut checker);
    let (routing, objective) = (routing(file.routing), objective(file.objective, &mut checker));
    check_overrides(&routing, &objective.classes, &mut checker);
    let tls = tls(file.tls, &mut checker);
    Config {
        endpoint_picker: endpoint_picker(
            &file.endpoint_picker,
            (&server, &admin),
            &tls,
            &urls,
            &mut checker,
        ),
        server,
        admin,
        workers,
        discovery,
        routing,
        objective,
        hints: Hints {
            enabled: file.hints.enabled,
            ttl: Millis(file.hints.ttl_s * 1000.0),
            in_request: file.hints.in_request,
            out_of_band: file.hints.out_of_band,
            protect_from: NonZeroU32::new(file.hints.protect_from),
        },
        learning: Learning {
            costs: file.learning.costs,
            fade: Millis(file.learning.fade_s * 1000.0),
            habits: file.learning.habits,
        },
        index: index(file.index, &mut checker),
        health: health(&file.health, &mut checker),
        failure: failure(&file.failure, &mut checker),
        http: http(file.http, &mut checker),
        limits: limits(&file.limits, &mut checker),
        keys: keys(file.keys, &file.admission.keys_file, &mut checker),
        admission: admission(file.admission, &mut checker),
        tls,
        capture: capture(file.capture, &mut checker),
        explain: Explain {
            max_bytes: usize::try_from(file.explain.max_bytes).unwrap_or(usize::MAX),
            in_answers: file.explain.in_answers,
        },
        traces: traces(file.traces, &mut checker),
        fleet: fleet(file.fleet, &mut checker),
        log: log(file.log, &mut checker),
    }
}

fn index(written: written::Index, checker: &mut Checker<'_>) -> IndexConfig {
    let interval = checker.seconds("index.snapshot_interval_s", written.snapshot_interval_s);
    let max_age = checker.seconds("index.snapshot_max_age_s", written.snapshot_max_age_s);
    IndexConfig {
        max_bytes: checker.bytes("index.max_bytes", written.max_bytes),
        snapshot: (!written.snapshot_path.is_empty()).then(|| Snapshot {
            path: written.snapshot_path.into(),
            interval,
            max_age,
        }),
    }
}

fn capture(written: written::Capture, checker: &mut Checker<'_>) -> Option<Capture> {
    let max_bytes = checker.bytes("capture.max_bytes", written.max_bytes);
    (!written.path.is_empty()).then(|| Capture {
        path: written.path.into(),
        max_bytes,
    })
}

/// Returns the problem with log filter directives, and a remedy.
#[must_use]
pub fn level_problem(text: &str) -> Option<(String, Option<String>)> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    text.split(',').find_map(|directive| {
        // `level`, `target=level`, or `target[span{field=value}]=level`.
        let level = directive.rsplit('=').next().unwrap_or(directive).trim();
        if LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            return None;
        }
        let hint = crate::validate::nearest(level, LEVELS.into_iter());
        let what = format!("expected one of {}, found {level:?}", LEVELS.join(", "));
        Some((what, hint.map(|name| format!("did you mean `{name}`?"))))
    })
}

fn log(written: written::Log, checker: &mut Checker<'_>) -> Log {
    if let Some((what, hint)) = level_problem(&written.level) {
        checker.report("log.level", what, hint);
    }
    Log {
        format: written.format,
        level: written.level,
    }
}
