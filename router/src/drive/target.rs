//! Where a trace is replayed.

use std::str::FromStr;

use http::Uri;

/// An OpenAI-compatible endpoint with a name for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name in the report; the url's host and port unless one was given.
    pub name: String,
    /// Base url, without `/v1` and without a slash at its end.
    pub base: String,
}

/// What is wrong with a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no target; expected a url such as http://127.0.0.1:8080, or name=url")]
pub struct BadTarget(String);

impl Target {
    /// The url of `path`, which begins with a slash.
    ///
    /// # Errors
    /// If path and base make no url.
    pub fn url(&self, path: &str) -> Result<Uri, http::uri::InvalidUri> {
        format!("{}{path}", self.base).parse()
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget(text.to_owned());
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains("://") => (Some(name), url),
            _ => (None, text),
        };
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let uri: Uri = base.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() || name == Some("") {
            return Err(bad());
        }
        Ok(Self {
            name: name.unwrap_or(authority.as_str()).to_owned(),
            base: base.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_with_or_without_a_name() {
        let plain: Target = "http://h:1/v1/".parse().unwrap();
        assert_eq!((plain.name.as_str(), plain.base.as_str()), ("h:1", "http://h:1"));
        let named: Target = "tail=http://h:1/base".parse().unwrap();
        assert_eq!(
            (named.name.as_str(), named.base.as_str()),
            ("tail", "http://h:1/base")
        );
        assert_eq!(named.url("/v1/models").unwrap().path(), "/base/v1/models");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "h:1",
            "https://h:1",
            "=http://h:1",
            "http://h:1?x=1",
            "tail=h",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
