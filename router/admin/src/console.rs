//! The console: serves the pages, styles and scripts of `router/admin/console`. The files contain no secrets and need
//! no token; the data that they show comes from operations, which do.
//!
//! The content security policy admits only files of this port: no inline script or style, no trusted-type conversion of
//! text to markup, no embedding in other pages. Names of workers and models cannot inject code.

use std::net::SocketAddr;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_64;

use super::problem::Problem;

#[cfg(test)]
mod generated;

const ROOT: &str = "/console/";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

#[derive(Debug)]
struct ConsoleFile {
    path: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($media_type:ident $path:literal)*) => {
        &[$(ConsoleFile {
            path: $path,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../console/", $path)),
        }),*]
    };
}

const FILES: &[ConsoleFile] = files![
    HTML "index.html"
    SVG "icon.svg"
    CSS "console.css"
    CSS "parts.css"
    JS "theme.js"
    JS "main.js"
    JS "api.js"
    JS "chart.js"
    JS "events.js"
    JS "format.js"
    JS "history.js"
    JS "live.js"
    JS "metrics.js"
    JS "objective.js"
    JS "parts.js"
    JS "session.js"
    JS "terms.js"
    JS "view.js"
    JS "pages/conversations.js"
    JS "pages/decisions.js"
    JS "pages/draft.js"
    JS "pages/events.js"
    JS "pages/fleet.js"
    JS "pages/join.js"
    JS "pages/preview.js"
    JS "pages/shadow.js"
    JS "pages/tables.js"
    JS "pages/trend.js"
    JS "pages/ttft.js"
    JS "pages/weights.js"
    JS "pages/worker.js"
];

/// One entity tag for all files, so that browsers do not mix modules of two versions. It is sent as a weak one, because
/// a file has two forms: plain and compressed.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let files = FILES.iter().map(|file| xxh3_64(file.bytes));
    let all: Vec<u8> = files.flat_map(u64::to_le_bytes).collect();
    format!("\"{:016x}\"", xxh3_64(&all))
});

pub(super) fn routes(router: Router) -> Router {
    router
        // Not permanent: a browser would keep it for whatever else listens on this port later.
        .route("/", get(|| async { elsewhere(StatusCode::TEMPORARY_REDIRECT) }))
        .route(
            "/console",
            get(|| async { elsewhere(StatusCode::PERMANENT_REDIRECT) }),
        )
        .route(
            ROOT,
            get(|headers: HeaderMap| async move { serve("index.html", &headers) }),
        )
        .route(
            "/console/{*path}",
            get(|Path(path): Path<String>, headers: HeaderMap| async move { serve(&path, &headers) }),
        )
}

/// Redirects to [`ROOT`]: the pages refer to their files relative to a folder.
fn elsewhere(status: StatusCode) -> Response {
    (status, [(header::LOCATION, HeaderValue::from_static(ROOT))]).into_response()
}

/// Returns the console's URL for a browser on this machine.
#[must_use]
pub fn url(admin: SocketAddr) -> String {
    if admin.ip().is_unspecified() {
        format!("http://localhost:{}{ROOT}", admin.port())
    } else {
        format!("http://{admin}{ROOT}")
    }
}

fn serve(path: &str, asked: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.path == path) else {
        return Problem::not_found("the console has no such file; it starts at /console/").into_response();
    };
    let known = asked.get_all(header::IF_NONE_MATCH).iter();
    let known = known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == *TAG || tag == "*");
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        file.bytes.into_response()
    };
    let headers = response.headers_mut();
    if !known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.media_type));
    }
    if let Ok(tag) = HeaderValue::from_str(&format!("W/{}", *TAG)) {
        headers.insert(header::ETAG, tag);
    }
    for (name, value) in [
        // Browsers revalidate each time, so that an upgrade takes effect at once.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn below(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                below(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served_as_what_it_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut there = BTreeSet::new();
        below(&folder, "", &mut there);
        let served: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(there, served);
        for file in FILES {
            let kind = match file.path.rsplit_once('.').unwrap().1 {
                "html" => HTML,
                "css" => CSS,
                "js" => JS,
                _ => SVG,
            };
            assert_eq!(file.media_type, kind, "{}", file.path);
        }
    }

    #[test]
    fn who_has_the_file_is_not_sent_it_again() {
        let first = serve("main.js", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].clone();
        let again = serve("main.js", &HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        let other = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("\"0\""))]);
        assert_eq!(serve("main.js", &other).status(), StatusCode::OK);
    }

    #[test]
    fn the_url_is_one_that_a_browser_can_open() {
        let url = |admin: &str| url(admin.parse().unwrap());
        assert_eq!(url("10.0.0.7:9090"), "http://10.0.0.7:9090/console/");
        assert_eq!(url("0.0.0.0:9091"), "http://localhost:9091/console/");
        assert_eq!(url("[::1]:9090"), "http://[::1]:9090/console/");
    }

    #[test]
    fn no_page_may_hold_a_script_or_style_of_its_own() {
        let response = serve("index.html", &HeaderMap::new());
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
        assert!(policy.contains("frame-ancestors 'none'"));
        assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        let page = FILES[0].bytes;
        let page = std::str::from_utf8(page).unwrap();
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("onclick"));
        for script in page.split("<script").skip(1) {
            assert!(script.split('>').next().unwrap().contains("src="), "{script}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found_and_nothing_above_the_folder_is_there() {
        for path in ["", "no.js", "../src/lib.rs", "pages", "pages/../main.js"] {
            assert_eq!(
                serve(path, &HeaderMap::new()).status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
    }
}
