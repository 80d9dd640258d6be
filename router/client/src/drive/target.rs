//! The endpoints that a trace is replayed against.

use std::str::FromStr;

use http::Uri;
use reqwest::Url;

/// A named OpenAI-compatible service with one or several endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveTarget {
    /// Name in the report; by default the URL's host and port.
    pub name: String,
    /// Base URLs, without `/v1` and a trailing slash; never empty. Each turn goes to any, as behind a load balancer.
    pub bases: Vec<String>,
}

/// The error for a target that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid target; expected a url such as http://127.0.0.1:8080, or name=url, or name=url,url"
)]
pub struct BadTarget(String);

impl DriveTarget {
    /// Returns the URL of `path`, which begins with a slash, for each base. Fails if they form no valid URL.
    pub fn urls(&self, path: &str) -> Result<Vec<Url>, <Url as FromStr>::Err> {
        self.bases
            .iter()
            .map(|base| format!("{base}{path}").parse())
            .collect()
    }
}

impl FromStr for DriveTarget {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget(text.to_owned());
        let (name, urls) = match text.split_once('=') {
            Some((name, url)) if !name.contains("://") => (Some(name), url),
            _ => (None, text),
        };
        let bases: Option<Vec<(String, String)>> = urls.split(',').map(base).collect();
        let bases = bases.ok_or_else(bad)?;
        let host = bases.first().map(|(host, _)| host.clone());
        match name.map(str::to_owned).or(host) {
            Some(name) if !name.is_empty() => Ok(Self {
                name,
                bases: bases.into_iter().map(|(_, base)| base).collect(),
            }),
            _ => Err(bad()),
        }
    }
}

/// Parses a URL. Returns its host and port, and the URL without `/v1` and trailing slashes.
fn base(url: &str) -> Option<(String, String)> {
    let base = url.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let uri: Uri = base.parse().ok()?;
    let host = uri.authority()?.to_string();
    let is_base = matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none();
    is_base.then(|| (host, base.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_with_or_without_a_name() {
        let plain: DriveTarget = "http://h:1/v1/".parse().unwrap();
        assert_eq!(
            (plain.name.as_str(), &plain.bases[..]),
            ("h:1", &["http://h:1".to_owned()][..])
        );
        let named: DriveTarget = "tail=http://h:1/base".parse().unwrap();
        assert_eq!(named.name, "tail");
        assert_eq!(named.urls("/v1/models").unwrap()[0].path(), "/base/v1/models");
        let several: DriveTarget = "fleet=http://h:1/v1,http://h:2".parse().unwrap();
        assert_eq!(several.bases, ["http://h:1", "http://h:2"]);
    }

    #[test]
    fn invalid_target_urls_are_rejected() {
        for text in [
            "",
            "h:1",
            "ftp://h:1",
            "=http://h:1",
            "http://h:1?x=1",
            "tail=h",
            "tail=http://h:1,h:2",
            "http://h:1,",
        ] {
            assert!(text.parse::<DriveTarget>().is_err(), "{text}");
        }
    }
}
