//! Reads configurations of nginx with an upstream of OpenAI-compatible workers.

mod read;
mod table;
mod target;
mod units;
mod write;

use crate::compose::{self, address};
use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::given::ParsedOption;
use crate::workers;

use read::Directive;
pub(crate) use table::TABLE;
use target::{ProxyTarget, target};
use units::seconds;

pub(crate) fn looks_like(text: &str) -> bool {
    let begins = |name: &str| {
        text.lines().any(|line| {
            let line = line.trim_start();
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', '\t', '{']))
        })
    };
    begins("proxy_pass")
        || begins("upstream")
        || begins("location")
        || text
            .lines()
            .any(|line| line.contains("{") && line.contains("proxy_pass "))
}

pub(crate) fn read(name: &str, text: &str) -> Result<ConfigDraft, Error> {
    let directives = read::directives(name, text)?;
    let mut walk = Walk {
        name,
        draft: ConfigDraft::default(),
        target: target(&directives, name)?,
        limits: Vec::new(),
    };
    walk.blocks(&directives, BlockContext::Main)?;
    walk.finish();
    Ok(walk.draft)
}

const ANOTHER_POOL: &str =
    "another pool of workers: migrate it into a separate file, or add its workers to [[workers]]";

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockContext {
    Main,
    Server,
    Upstream,
}

struct Walk<'a> {
    name: &'a str,
    draft: ConfigDraft,
    target: ProxyTarget,
    /// Keys with the values of `max_fails`, `fail_timeout` and the like, of every server.
    limits: Vec<(String, f64)>,
}

impl Walk<'_> {
    fn blocks(&mut self, block: &[Directive], context: BlockContext) -> Result<(), Error> {
        for directive in block {
            self.directive(directive, context)?;
        }
        Ok(())
    }

    fn directive(&mut self, directive: &Directive, context: BlockContext) -> Result<(), Error> {
        let given = ParsedOption {
            name: directive.name.clone(),
            values: directive.args.clone(),
            line: Some(format!("{}:{}", self.name, directive.line)),
            secret: holds_secret(directive),
        };
        match (directive.name.as_str(), directive.block.as_deref()) {
            ("location", Some(block)) if self.goes_elsewhere(block) => {
                self.draft.note(given.shown(), ANOTHER_POOL);
                Ok(())
            }
            ("http" | "events" | "location", Some(block)) => self.blocks(block, context),
            ("server", Some(block)) if directive.line == self.target.server => {
                self.blocks(block, BlockContext::Server)
            }
            ("server", Some(_)) => {
                self.draft.note(
                    given.shown(),
                    "another server block; the router has one data port",
                );
                Ok(())
            }
            ("upstream", Some(block)) if directive.args.first() == Some(&self.target.host) => {
                self.blocks(block, BlockContext::Upstream)
            }
            ("upstream", Some(_)) => {
                self.draft.note(given.shown(), ANOTHER_POOL);
                Ok(())
            }
            (_, Some(_)) => {
                self.draft.note(
                    format!("{} {{…}}", given.shown()),
                    "blocks of this kind are not evaluated",
                );
                Ok(())
            }
            ("server", None) if context == BlockContext::Upstream => self.server(&given),
            ("listen", None) => self.listen(&given),
            ("proxy_pass", None) => {
                self.proxy_pass(directive, &given);
                Ok(())
            }
            _ => match TABLE.iter().find(|row| row.name == directive.name) {
                Some(row) => row.apply(given, &mut self.draft),
                None => {
                    self.draft.note(
                        given.shown(),
                        "not a directive that is known here; see docs/configuration.md",
                    );
                    Ok(())
                }
            },
        }
    }

    /// Returns whether a location has a `proxy_pass` to other workers.
    fn goes_elsewhere(&self, block: &[Directive]) -> bool {
        block.iter().any(|directive| {
            let url = directive.args.first().map_or("", String::as_str);
            directive.name == "proxy_pass"
                && directive.line != self.target.line
                && target::host(url) != self.target.host
        })
    }

    fn proxy_pass(&mut self, directive: &Directive, given: &ParsedOption) {
        if directive.line != self.target.line {
            // Another location with the same workers.
            return;
        }
        if self.target.replaces_path {
            let why = "paths are forwarded as they came; let a proxy in front replace a prefix";
            self.draft.note(given.shown(), why);
        }
        if !self.target.is_upstream {
            let url = format!("{}://{}", self.target.scheme, self.target.host);
            workers::add(&mut self.draft, &url, &[], &given.shown());
        }
    }

    fn server(&mut self, given: &ParsedOption) -> Result<(), Error> {
        let wrong = |what: String| Error::wrong(given.place(), what);
        let Some((address, parameters)) = given.values.split_first() else {
            return Err(wrong("expected an address".to_owned()));
        };
        let mut is_used = true;
        for parameter in parameters {
            let shown = format!("{}: {address} {parameter}", given.place());
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let key_of = match key {
                "max_fails" => "failure.breaker_failures",
                "fail_timeout" => "failure.breaker_pause_s",
                "max_conns" => "admission.max_concurrent_per_worker",
                "slow_start" => "failure.slow_start_s",
                "weight" => {
                    self.draft
                        .note(shown, "no weights: the router learns how fast each worker is");
                    continue;
                }
                "backup" | "down" => {
                    is_used = false;
                    self.draft
                        .note(given.shown(), "left out: every worker of the file gets requests");
                    continue;
                }
                _ => {
                    self.draft.note(shown, "not a parameter that has an equivalent");
                    continue;
                }
            };
            let number = if matches!(key, "fail_timeout" | "slow_start") {
                seconds(value)
            } else {
                value.parse().ok()
            };
            let number = number.ok_or_else(|| wrong(format!("{parameter}: expected a number")))?;
            self.limits.push((key_of.to_owned(), number));
            self.draft.set_number(key_of, number, given.shown());
        }
        if !is_used {
            return Ok(());
        }
        if address.starts_with("unix:") {
            self.draft.note(
                given.shown(),
                "workers have a host and a port; local sockets are not supported",
            );
        } else {
            let url = format!("{}://{address}", self.target.scheme);
            workers::add(&mut self.draft, &url, &[], &given.shown());
        }
        Ok(())
    }

    fn listen(&mut self, given: &ParsedOption) -> Result<(), Error> {
        let first = given.first();
        if first.starts_with("unix:") {
            self.draft
                .note(given.shown(), "the data port has an address and a port");
            return Ok(());
        }
        let (host, port) = match first.rsplit_once(':') {
            Some((host, port)) if !first.ends_with(']') => (host, port),
            _ if first.bytes().all(|byte| byte.is_ascii_digit()) => ("*", first),
            _ => (first, "80"),
        };
        let host = if host == "*" { "0.0.0.0" } else { host };
        let port: u16 = port.parse().map_err(|_| {
            Error::wrong(
                given.place(),
                format!("expected an address or a port, found {first:?}"),
            )
        })?;
        let Some(ip) = address(host) else {
            self.draft.note(given.shown(), "expected an IP address");
            return Ok(());
        };
        if self.draft.has("server.listen") {
            self.draft.note(
                given.shown(),
                "there is one data port; [::]:PORT serves IPv4 too where the system maps it",
            );
            return Ok(());
        }
        let listen = std::net::SocketAddr::new(ip, port).to_string();
        self.draft.set("server.listen", listen, given.shown());
        Ok(())
    }

    /// Sets keys that nginx has for each server and tailroute has once to the largest value.
    fn finish(&mut self) {
        for (key, parameter) in [
            ("failure.breaker_failures", "max_fails"),
            ("failure.breaker_pause_s", "fail_timeout"),
            ("failure.slow_start_s", "slow_start"),
            ("admission.max_concurrent_per_worker", "max_conns"),
        ] {
            let numbers: Vec<f64> = self
                .limits
                .iter()
                .filter(|(of, _)| of == key)
                .map(|(_, number)| *number)
                .collect();
            let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let most = numbers.iter().copied().fold(0.0, f64::max);
            if least < most {
                self.draft.note(
                    format!("{parameter} of {least} to {most}"),
                    format!("{key} is one for all workers: {most}"),
                );
                let from = format!("{parameter}={most}, the largest of all servers");
                self.draft.set_number(key, most, from);
            }
            // `max_fails=0` and `max_conns=0` switch the limit off.
            if most == 0.0 && !numbers.is_empty() && key == "failure.breaker_failures" {
                self.draft.entries.remove(key);
                self.draft.set("failure.max_ejected_share", 0, "max_fails=0");
            }
        }
        compose::agree(&mut self.draft, 5.0);
    }
}

fn holds_secret(directive: &Directive) -> bool {
    directive.name == "proxy_set_header"
        && directive.args.first().is_some_and(|name| {
            let name = name.to_ascii_lowercase();
            name == "authorization" || name.contains("key") || name.contains("token")
        })
}
