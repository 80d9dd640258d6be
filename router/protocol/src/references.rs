//! Response headers that refer to a worker by its address: a redirect, a link, a cookie's domain.
//!
//! Clients could follow such a reference past the router, or cannot reach it. A reference to a worker is therefore
//! reduced to its path, which clients resolve against the router's own address. References to other hosts stay, such
//! as a redirect to an object store.

use http::header::{ALT_SVC, HeaderMap, HeaderName, HeaderValue};

/// Addresses of the workers, as far as references concern them.
pub trait Addresses {
    /// Returns whether a worker has this host and port. `None` is for a reference without a scheme and a port.
    fn is_worker(&self, host: &str, port: Option<u16>) -> bool;

    /// Returns whether a worker has this host name.
    fn is_host(&self, host: &str) -> bool;
}

/// Function that rewrites a value. It gets the value, the worker's base path without a slash at its end, and the
/// workers' addresses. It returns `None` if the value stays.
type Rewrite = fn(&str, &str, &dyn Addresses) -> Option<String>;

fn rewrite(name: &HeaderName) -> Option<Rewrite> {
    Some(match name.as_str() {
        "location" | "content-location" | "operation-location" => reference,
        "refresh" => refresh,
        "link" => links,
        "set-cookie" => cookie,
        _ => return None,
    })
}

/// Returns whether a header of this name may refer to a worker.
pub fn is_reference(name: &HeaderName) -> bool {
    rewrite(name).is_some() || *name == ALT_SVC
}

/// Rewrites the references of a response to workers. `base` is the path below which the worker serves.
pub fn conceal(headers: &mut HeaderMap, base: &str, workers: &dyn Addresses) {
    let base = base.trim_end_matches('/');
    for (name, value) in headers.iter_mut() {
        let Some(rewrite) = rewrite(name) else { continue };
        let rewritten = rewrite(&String::from_utf8_lossy(value.as_bytes()), base, workers);
        if let Some(rewritten) = rewritten.and_then(|text| HeaderValue::try_from(text).ok()) {
            *value = rewritten;
        }
    }
    // It names another address of the server, which here is the router.
    headers.remove(ALT_SVC);
}

/// Address in an absolute reference, and the text after it.
struct Absolute<'a> {
    host: &'a str,
    port: Option<u16>,
    rest: &'a str,
}

fn is_slash(character: char) -> bool {
    // Browsers read a backslash as a slash.
    matches!(character, '/' | '\\')
}

fn absolute(text: &str) -> Option<Absolute<'_>> {
    let (scheme_port, after) = match text.split_once(':') {
        Some((scheme, after)) if scheme.eq_ignore_ascii_case("http") => (Some(80), after),
        Some((scheme, after)) if scheme.eq_ignore_ascii_case("https") => (Some(443), after),
        _ if text.starts_with(is_slash) && text[1..].starts_with(is_slash) => (None, text),
        _ => return None,
    };
    let after = after.trim_start_matches(is_slash);
    let end = after.find(['/', '\\', '?', '#']).unwrap_or(after.len());
    let (authority, rest) = after.split_at(end);
    let address = authority
        .rsplit_once('@')
        .map_or(authority, |(_, address)| address);
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if is_port(port) => (host, port.parse().ok()),
        _ => (address, None),
    };
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .trim_end_matches('.');
    let port = port.or(scheme_port);
    Some(Absolute { host, port, rest })
}

/// Returns the path of a reference to a worker, as clients of the router see it; `None` if the reference stays.
fn reference(text: &str, base: &str, workers: &dyn Addresses) -> Option<String> {
    let text = text.trim();
    let path = match absolute(text) {
        Some(absolute) if workers.is_worker(absolute.host, absolute.port) => absolute.rest,
        Some(_) => return None,
        // A path of the worker begins with its base path.
        None => Some(text).filter(|_| !base.is_empty() && below(text, base).is_some())?,
    };
    let path = below(path, base).unwrap_or(path);
    // More than one slash would make the path an address.
    Some(format!("/{}", path.trim_start_matches(is_slash)))
}

fn below<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(base)?;
    (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
}

/// Rewrites `5; url=REFERENCE`.
fn refresh(text: &str, base: &str, workers: &dyn Addresses) -> Option<String> {
    let at = text.to_ascii_lowercase().find("url")?;
    let (before, after) = text.split_at(at);
    let named = after[3..].trim_start().strip_prefix('=')?.trim();
    let named = named.trim_matches(['"', '\'']);
    Some(format!("{before}url={}", reference(named, base, workers)?))
}

/// Rewrites each `<REFERENCE>` of `<REFERENCE>; rel="next", …`.
fn links(text: &str, base: &str, workers: &dyn Addresses) -> Option<String> {
    let (mut rewritten, mut rest, mut has_changed) = (String::with_capacity(text.len()), text, false);
    while let Some((before, after)) = rest.split_once('<') {
        let Some((named, after)) = after.split_once('>') else {
            break;
        };
        let changed = reference(named, base, workers);
        has_changed |= changed.is_some();
        let named = changed.as_deref().unwrap_or(named);
        rewritten.extend([before, "<", named, ">"]);
        rest = after;
    }
    rewritten.push_str(rest);
    has_changed.then_some(rewritten)
}

/// Removes a cookie's domain if it is a worker's: the cookie is then the router's.
fn cookie(text: &str, _base: &str, workers: &dyn Addresses) -> Option<String> {
    let is_workers = |attribute: &&str| {
        attribute.split_once('=').is_some_and(|(name, domain)| {
            name.trim().eq_ignore_ascii_case("domain")
                && workers.is_host(domain.trim().trim_start_matches('.'))
        })
    };
    let (value, attributes) = text.split_once(';')?;
    let attributes: Vec<&str> = attributes.split(';').collect();
    let kept = attributes.iter().filter(|attribute| !is_workers(attribute));
    let kept: Vec<&str> = std::iter::once(value).chain(kept.copied()).collect();
    (kept.len() <= attributes.len()).then(|| kept.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Workers;

    impl Addresses for Workers {
        fn is_worker(&self, host: &str, port: Option<u16>) -> bool {
            self.is_host(host) && port.is_none_or(|port| port == 8000)
        }

        fn is_host(&self, host: &str) -> bool {
            ["vllm-0.svc", "10.0.0.1", "fd00::1"]
                .iter()
                .any(|own| own.eq_ignore_ascii_case(host))
        }
    }

    fn concealed(name: &'static str, value: &str, base: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        );
        conceal(&mut headers, base, &Workers);
        headers
            .get(name)
            .map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_reference_to_a_worker_becomes_a_path() {
        for (given, seen) in [
            ("http://vllm-0.svc:8000/v1/models?a=b#c", "/v1/models?a=b#c"),
            ("HTTP://VLLM-0.svc:8000/v1/models", "/v1/models"),
            ("https://10.0.0.1:8000", "/"),
            ("http://10.0.0.1:8000?a", "/?a"),
            ("//vllm-0.svc:8000/x", "/x"),
            ("/\\vllm-0.svc:8000/x", "/x"),
            ("http:\\\\vllm-0.svc:8000\\x", "/x"),
            ("http:vllm-0.svc:8000/x", "/x"),
            ("http://user:pass@vllm-0.svc:8000/x", "/x"),
            ("http://vllm-0.svc.:8000/x", "/x"),
            ("http://[fd00::1]:8000/x", "/x"),
            ("http://vllm-0.svc:8000//evil.example/x", "/evil.example/x"),
            ("http://vllm-0.svc:8000/\\evil.example", "/evil.example"),
        ] {
            for name in ["location", "content-location", "operation-location"] {
                assert_eq!(concealed(name, given, ""), seen, "{name}: {given}");
            }
        }
    }

    #[test]
    fn any_other_reference_stays() {
        for given in [
            "/v1/models",
            "models/x",
            "",
            "?a=http://vllm-0.svc:8000/",
            "http://vllm-0.svc:9000/x",
            "http://vllm-0.svc/x",
            "https://bucket.example/http://vllm-0.svc:8000/",
            "https://vllm-0.svc.evil.example:8000/",
            "//bucket.example/x",
            "mailto:a@vllm-0.svc",
            "http:",
        ] {
            assert_eq!(concealed("location", given, ""), given);
        }
    }

    #[test]
    fn the_workers_base_path_is_left_out() {
        for (given, seen) in [
            ("http://vllm-0.svc:8000/base/v1/x", "/v1/x"),
            ("/base/v1/x", "/v1/x"),
            ("/base?a", "/?a"),
            ("/base", "/"),
            ("/base//evil.example", "/evil.example"),
            ("/baseless", "/baseless"),
            ("http://vllm-0.svc:8000/other", "/other"),
        ] {
            assert_eq!(concealed("location", given, "/base/"), seen, "{given}");
        }
    }

    #[test]
    fn links_refreshes_and_cookies_are_rewritten_in_place() {
        for (name, given, seen) in [
            (
                "link",
                "<http://10.0.0.1:8000/a>; rel=next, <https://x.example/b>; rel=\"prev\"",
                "</a>; rel=next, <https://x.example/b>; rel=\"prev\"",
            ),
            ("link", "<http://10.0.0.1:8000/a", "<http://10.0.0.1:8000/a"),
            ("refresh", "5; URL=\"http://10.0.0.1:8000/a\"", "5; url=/a"),
            (
                "refresh",
                "0;url = http://x.example/",
                "0;url = http://x.example/",
            ),
            ("refresh", "5", "5"),
            (
                "set-cookie",
                "a=b; Domain=.vllm-0.svc; Path=/; Secure",
                "a=b; Path=/; Secure",
            ),
            ("set-cookie", "a=b; domain=example.com", "a=b; domain=example.com"),
            ("set-cookie", "domain=vllm-0.svc", "domain=vllm-0.svc"),
            ("alt-svc", "h2=\":8443\"", ""),
            ("x-other", "http://10.0.0.1:8000/a", "http://10.0.0.1:8000/a"),
        ] {
            assert_eq!(concealed(name, given, ""), seen, "{name}");
        }
    }

    #[test]
    fn every_value_of_a_repeated_header_is_rewritten() {
        let mut headers = HeaderMap::new();
        for path in ["a", "b"] {
            let link = format!("<http://10.0.0.1:8000/{path}>");
            headers.append("link", HeaderValue::try_from(link).unwrap());
        }
        conceal(&mut headers, "", &Workers);
        let all: Vec<_> = headers.get_all("link").iter().collect();
        assert_eq!(all, ["</a>", "</b>"]);
    }
}
