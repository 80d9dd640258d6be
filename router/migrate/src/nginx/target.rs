//! Finds the `proxy_pass` that the inference APIs go through.

use crate::error::Error;

use super::read::Directive;

pub(super) struct ProxyTarget {
    /// Line of the `proxy_pass`.
    pub(super) line: usize,
    /// Line of the `server` block around it.
    pub(super) server: usize,
    pub(super) scheme: String,
    /// Name of an upstream, or a host.
    pub(super) host: String,
    /// Whether there is an upstream of the name `host`.
    pub(super) is_upstream: bool,
    /// Whether nginx replaces the beginning of the path.
    pub(super) replaces_path: bool,
}

struct Pass<'a> {
    directive: &'a Directive,
    server: usize,
    path: &'a str,
    /// Rank; the pass with the smallest is preferred.
    rank: usize,
}

/// Finds the `proxy_pass` of the inference APIs: below `/v1`, else below `/`, else the first.
pub(super) fn target(directives: &[Directive], name: &str) -> Result<ProxyTarget, Error> {
    let mut found = Vec::new();
    passes(directives, (0, "/", 2), &mut found);
    let best = found.into_iter().min_by_key(|pass| pass.rank);
    let pass = best.ok_or_else(|| Error::wrong(name, "no `proxy_pass`, so that no workers are named"))?;
    let place = || format!("{name}:{}: proxy_pass", pass.directive.line);
    let url = pass.directive.args.first().map_or("", String::as_str);
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| Error::wrong(place(), format!("expected a url, found {url:?}")))?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if host.contains('$') {
        let what = "the host is a variable; name the upstream itself";
        return Err(Error::wrong(place(), what));
    }
    Ok(ProxyTarget {
        line: pass.directive.line,
        server: pass.server,
        scheme: scheme.to_owned(),
        host: host.to_owned(),
        is_upstream: has_upstream(directives, host),
        replaces_path: !path.is_empty() && path != pass.path,
    })
}

/// Returns the host of a url, which may be the name of an upstream.
pub(super) fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn passes<'a>(
    block: &'a [Directive],
    (server, path, rank): (usize, &'a str, usize),
    found: &mut Vec<Pass<'a>>,
) {
    for directive in block {
        match (directive.name.as_str(), directive.block.as_deref()) {
            ("proxy_pass", None) => found.push(Pass {
                directive,
                server,
                path,
                rank,
            }),
            ("http", Some(inner)) => passes(inner, (server, path, rank), found),
            ("server", Some(inner)) => passes(inner, (directive.line, path, rank), found),
            ("location", Some(inner)) => {
                let path = directive.args.last().map_or("", String::as_str);
                passes(inner, (server, path, self::rank(directive, path)), found);
            }
            _ => {}
        }
    }
}

fn rank(location: &Directive, path: &str) -> usize {
    let path = path.trim_start_matches('^');
    let is_one_path = location.args.first().is_some_and(|sign| sign == "=");
    match path {
        _ if path.contains("chat") || (path.starts_with("/v1") && !is_one_path) => 0,
        "/" => 1,
        _ => 2,
    }
}

fn has_upstream(block: &[Directive], host: &str) -> bool {
    block.iter().any(|directive| {
        let is_it = directive.name == "upstream" && directive.args.first().is_some_and(|name| name == host);
        is_it
            || directive
                .block
                .as_deref()
                .is_some_and(|block| has_upstream(block, host))
    })
}
