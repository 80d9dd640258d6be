//! Syntax of base urls: of workers, Kubernetes API servers and collectors.

use std::net::{IpAddr, SocketAddr};

use http::Uri;

/// Problem, and a remedy if one is known.
type Refusal = (String, Option<&'static str>);

/// Parses a base url and removes trailing slashes, so that a path can be appended.
pub(crate) fn base_url(text: &str) -> Result<Uri, Refusal> {
    let trimmed = text.trim_end_matches('/');
    let refuse = |why: &str, hint| {
        Err((
            format!("{why}; expected a url such as http://10.0.0.1:8000, found {text:?}"),
            hint,
        ))
    };
    let (Ok(_), Ok(url)) = (text.parse::<Uri>(), trimmed.parse::<Uri>()) else {
        return refuse("not a url", None);
    };
    match url.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return refuse("not an http url", None),
        None => return refuse("no scheme", Some("put http:// in front")),
    }
    let Some(authority) = url.authority() else {
        return refuse("no host", None);
    };
    if authority.host().is_empty() {
        return refuse("no host", None);
    }
    if authority.as_str().contains('@') {
        return refuse("credentials in a url end up in logs", Some("leave them out"));
    }
    if authority.as_str() != authority.host() && authority.port_u16().is_none_or(|port| port == 0) {
        return refuse("no usable port", None);
    }
    if url.query().is_some() || trimmed.contains('#') {
        return refuse("a base url has no query and no fragment", None);
    }
    if url.path().ends_with("/v1") {
        return refuse(
            "ends in /v1, which the client's path already has",
            Some("leave /v1 out"),
        );
    }
    Ok(url)
}

/// Returns the address of a base url that has an IP address and no path.
pub(crate) fn address_of(url: &Uri) -> Option<SocketAddr> {
    let host = url.host()?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let usual = if url.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    let address = SocketAddr::new(host.parse::<IpAddr>().ok()?, url.port_u16().unwrap_or(usual));
    (url.path().trim_end_matches('/').is_empty()).then_some(address)
}
