//! From what is written to what was meant.
//!
//! Ranges of single numbers are the schema's business and have been checked; what is left are texts with a grammar of
//! their own and values that must agree with each other. Where one is wrong the problem is noted, a default stands in,
//! and the rest is still checked; nothing that was put together with a stand-in is ever returned.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use policy::route::{CacheAware, Weights};
use policy::units::{Millis, Tokens};

use super::{
    Admin, Capture, Class, Config, Health, Hints, IndexConfig, Learning, Limits, Log, Objective, Routing,
    Server, Snapshot, worker,
};
use crate::problem::{Origin, Problem, Problems};
use crate::written;

/// Checks what `file` means. The result is whole only if `problems` stays empty.
pub(crate) fn check(
    file: written::File,
    origins: &BTreeMap<String, Origin>,
    problems: &mut Problems,
) -> Config {
    let mut checker = Checker { origins, problems };
    let server = Server {
        listen: checker.address("server.listen", &file.server.listen),
    };
    let admin = Admin {
        listen: checker.address("admin.listen", &file.admin.listen),
    };
    if server.listen == admin.listen && server.listen.port() != 0 {
        let what = format!(
            "{} is the data port as well; expected a port of its own",
            admin.listen
        );
        checker.report("admin.listen", what, None);
    }
    Config {
        server,
        admin,
        workers: worker::check_all(file.workers, &mut checker),
        routing: routing(file.routing),
        objective: objective(file.objective, &mut checker),
        hints: Hints {
            enabled: file.hints.enabled,
            ttl: Millis(file.hints.ttl_s * 1000.0),
            in_request: file.hints.in_request,
            out_of_band: file.hints.out_of_band,
            ended_below: file.hints.ended_below,
            protect_from: NonZeroU32::new(file.hints.protect_from),
        },
        learning: Learning {
            costs: file.learning.costs,
            fade: Millis(file.learning.fade_s * 1000.0),
            habits: file.learning.habits,
            xi: file.learning.xi,
        },
        index: index(file.index, &mut checker),
        health: health(&file.health, &mut checker),
        limits: limits(&file.limits, &mut checker),
        capture: capture(file.capture, &mut checker),
        log: log(file.log, &mut checker),
    }
}

fn objective(written: written::Objective, checker: &mut Checker<'_>) -> Objective {
    let mut classes: Vec<Class> = Vec::with_capacity(written.classes.len());
    for (at, class) in written.classes.into_iter().enumerate() {
        let key = |key: &str| format!("objective.classes[{at}].{key}");
        worker::check_name(&class.name, &key("name"), checker);
        if classes.iter().any(|known| known.name == class.name) {
            let what = format!("`{}` is the name of another class already", class.name);
            checker.report(&key("name"), what, None);
        }
        for model in &class.models {
            if classes.iter().any(|known| known.models.contains(model)) {
                let what = format!("`{model}` is of another class already");
                checker.report(&key("models"), what, None);
            }
        }
        classes.push(Class {
            name: class.name,
            ttft: Millis(class.ttft_ms),
            models: class.models,
        });
    }
    Objective {
        ttft: Millis(written.ttft_ms),
        share: written.share,
        next_prompt: Tokens(written.next_prompt_tokens),
        classes,
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

/// Needs no checker: every value of the section is a number or a name that the schema has checked.
pub(crate) fn routing(written: written::Routing) -> Routing {
    let written::Weights {
        locality,
        home,
        load,
        slo,
        affinity_ms,
        spread_ms,
    } = written.weights;
    let written::CacheAware {
        match_threshold,
        imbalance_abs,
        imbalance_rel,
    } = written.cache_aware;
    Routing {
        policy: written.policy,
        weights: Weights {
            locality,
            home,
            load,
            slo,
            affinity_ms,
            spread_ms,
        },
        kappa_max: written.kappa_max,
        utilisation_window: Millis(written.utilisation_window_s * 1000.0),
        cache_aware: CacheAware {
            match_threshold,
            imbalance_abs,
            imbalance_rel,
        },
        tokens_per_byte: written.tokens_per_byte,
    }
}

fn health(written: &written::Health, checker: &mut Checker<'_>) -> Health {
    if written.timeout_ms > written.interval_ms {
        let what = format!(
            "{} ms is longer than the {} ms between probes, which would overlap",
            written.timeout_ms, written.interval_ms
        );
        checker.report(
            "health.timeout_ms",
            what,
            Some("raise health.interval_ms or lower this".to_owned()),
        );
    }
    let path_is_good =
        written.path.parse::<http::uri::PathAndQuery>().is_ok() && written.path.starts_with('/');
    if !path_is_good {
        let what = format!("expected a path that begins with `/`, found {:?}", written.path);
        checker.report("health.path", what, None);
    }
    Health {
        interval: checker.seconds("health.interval_ms", written.interval_ms / 1000.0),
        timeout: checker.seconds("health.timeout_ms", written.timeout_ms / 1000.0),
        unhealthy_after: checker.count("health.unhealthy_after", written.unhealthy_after),
        healthy_after: checker.count("health.healthy_after", written.healthy_after),
        path: written.path.clone(),
        queue_interval: (written.queue_interval_ms > 0.0)
            .then(|| checker.seconds("health.queue_interval_ms", written.queue_interval_ms / 1000.0)),
    }
}

fn limits(written: &written::Limits, checker: &mut Checker<'_>) -> Limits {
    Limits {
        max_body_bytes: checker.bytes("limits.max_body_bytes", written.max_body_bytes),
        max_header_bytes: checker.bytes("limits.max_header_bytes", written.max_header_bytes),
        header_timeout: checker.seconds("limits.header_timeout_s", written.header_timeout_s),
        body_timeout: checker.seconds("limits.body_timeout_s", written.body_timeout_s),
        connect_timeout: checker.seconds("limits.connect_timeout_s", written.connect_timeout_s),
        first_byte_timeout: checker.seconds("limits.first_byte_timeout_s", written.first_byte_timeout_s),
        idle_timeout: checker.seconds("limits.idle_timeout_s", written.idle_timeout_s),
        max_connections: checker.bytes("limits.max_connections", written.max_connections.into()),
        max_in_flight: checker.bytes("limits.max_in_flight", written.max_in_flight.into()),
        drain_timeout: checker.seconds("limits.drain_timeout_s", written.drain_timeout_s),
        retries: written.retries,
    }
}

fn log(written: written::Log, checker: &mut Checker<'_>) -> Log {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in written.level.split(',') {
        // `level`, `target=level`, or `target[span{field=value}]=level`.
        let level = directive.rsplit('=').next().unwrap_or(directive).trim();
        if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            let hint = crate::validate::nearest(level, LEVELS.into_iter());
            let what = format!("expected one of {}, found {level:?}", LEVELS.join(", "));
            checker.report(
                "log.level",
                what,
                hint.map(|name| format!("did you mean `{name}`?")),
            );
        }
    }
    Log {
        format: written.format,
        level: written.level,
    }
}

/// Collects problems, each with the place where its key was written.
pub(super) struct Checker<'a> {
    origins: &'a BTreeMap<String, Origin>,
    problems: &'a mut Problems,
}

impl Checker<'_> {
    /// Notes a problem with the key `path`. A key that was not written is placed where its section was, or at
    /// the file's beginning.
    pub(super) fn report(&mut self, path: &str, what: String, hint: Option<String>) {
        let mut place = path;
        let origin = loop {
            if let Some(origin) = self.origins.get(place) {
                break origin.clone();
            }
            match place.rfind(['.', '[']) {
                Some(end) => place = &place[..end],
                None => break self.origins.get("").cloned().unwrap_or(Origin::Nowhere),
            }
        };
        self.problems.push(Problem {
            origin,
            path: path.to_owned(),
            what,
            hint,
        });
    }

    /// Whether somebody wrote this key, in the file or elsewhere.
    pub(super) fn is_written(&self, path: &str) -> bool {
        self.origins.contains_key(path)
    }

    fn address(&mut self, path: &str, text: &str) -> SocketAddr {
        text.parse().unwrap_or_else(|_| {
            let hint = match text.strip_prefix("localhost:") {
                Some(port) => Some(format!("write 127.0.0.1:{port}")),
                None if text.starts_with(':') => Some(format!("write 0.0.0.0{text} for every interface")),
                None => None,
            };
            self.report(
                path,
                format!("expected an address and a port such as 127.0.0.1:8080, found {text:?}"),
                hint,
            );
            SocketAddr::from(([127, 0, 0, 1], 0))
        })
    }

    fn bytes(&mut self, path: &str, number: u64) -> NonZeroUsize {
        let number = usize::try_from(number).ok().and_then(NonZeroUsize::new);
        number.unwrap_or_else(|| {
            self.report(
                path,
                "expected a number that is not zero and fits this machine".to_owned(),
                None,
            );
            NonZeroUsize::MIN
        })
    }

    fn count(&mut self, path: &str, number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap_or_else(|| {
            self.report(path, "expected a number of at least 1".to_owned(), None);
            NonZeroU32::MIN
        })
    }

    fn seconds(&mut self, path: &str, seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds).unwrap_or_else(|_| {
            self.report(path, "expected a length of time".to_owned(), None);
            Duration::ZERO
        })
    }
}
