//! Context of the checks of all sections: origins of keys, conversions that can still fail, and separate files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use http::Uri;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::base_url::base_url;
use crate::problem::{Origin, Problem, Problems};
use crate::read::read_apart;

pub(crate) struct Checker<'a> {
    pub(crate) origins: &'a BTreeMap<String, Origin>,
    pub(crate) problems: &'a mut Problems,
}

impl Checker<'_> {
    /// Reports a problem with a key. Its origin is that of the key, else of the nearest enclosing section, else of the
    /// file.
    pub(crate) fn report(&mut self, path: &str, what: String, hint: Option<String>) {
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

    /// Returns whether this key was set, in the file or elsewhere.
    pub(crate) fn is_written(&self, path: &str) -> bool {
        self.origins.contains_key(path)
    }

    pub(crate) fn address(&mut self, path: &str, text: &str) -> SocketAddr {
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

    /// Parses a base url; `None` if it is invalid.
    pub(crate) fn url(&mut self, path: &str, text: &str) -> Option<Uri> {
        base_url(text)
            .map_err(|(what, hint)| self.report(path, what, hint.map(str::to_owned)))
            .ok()
    }

    /// Reads and checks a separate file, which the key `path` names. Reports its problems, at their places in it.
    pub(crate) fn check_file<T: Default + DeserializeOwned + JsonSchema>(
        &mut self,
        path: &str,
        file: &Path,
        check: impl FnOnce(T, &mut Checker<'_>),
    ) {
        match read_apart::<T>(file) {
            Ok(mut read) => {
                let mut checker = Checker {
                    origins: &read.origins,
                    problems: &mut read.problems,
                };
                check(read.written, &mut checker);
                for problem in &read.problems {
                    self.problems.push(problem.clone());
                }
            }
            Err(error) => self.report(path, error.to_string(), None),
        }
    }
}
