//! URLs and keys of workers and routers, as options and files give them.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use http::HeaderValue;

/// Reads a secret from a file, without the final newline. Fails if the file cannot be read, or is empty.
pub fn secret(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(4096).read_to_string(&mut text));
    file.with_context(|| format!("{}: cannot be read", path.display()))?;
    ensure!(!text.trim().is_empty(), "{}: is empty", path.display());
    Ok(text.trim().to_owned())
}

/// Returns the `Authorization` value of a key. Fails if the key has characters that a header cannot contain.
pub fn bearer(key: &str) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .context("the key has characters that are invalid in a header")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Parses a URL and strips `/v1` and the trailing slash. Fails if it is not a valid URL.
pub fn base_url(text: &str) -> Result<String, String> {
    let base = text.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let uri: http::Uri = base.parse().map_err(|error| format!("{error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https"))
        || uri.authority().is_none()
        || uri.query().is_some()
    {
        return Err("expected a url such as http://10.0.0.1:8000".to_owned());
    }
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(
            "a url with credentials would be written to every file; pass the key with --api-key-file"
                .to_owned(),
        );
    }
    Ok(base.to_owned())
}
