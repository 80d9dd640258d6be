//! Failures of a watcher and their remedies.

use kube::runtime::watcher;
use tailroute_http::error::with_causes;

use super::refusal::Refusal;

pub(super) enum WatchFailure {
    /// The server has discarded the version of the last event.
    Gone,
    Refused(&'static str, Refusal),
    Malformed(String),
}

const LIST: &str = "list";
const WATCH: &str = "watch";

impl WatchFailure {
    fn refused(verb: &'static str, refusal: Refusal) -> Self {
        match refusal {
            Refusal::Answered { code: 410, .. } => Self::Gone,
            Refusal::OutOfBounds(what) => Self::Malformed(what),
            refusal => Self::Refused(verb, refusal),
        }
    }

    fn of_client(verb: &'static str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Service(error) => match error.downcast_ref::<Refusal>() {
                Some(refusal) => Self::refused(verb, refusal.clone()),
                None => Self::Malformed(with_causes(error.as_ref())),
            },
            error if verb == LIST => Self::Malformed(format!(
                "the response to a list is not a list: {}",
                with_causes(error)
            )),
            // kube parses any other JSON object as a status.
            kube::Error::Api(_) => Self::Malformed("invalid watch event".to_owned()),
            error => Self::Malformed(format!("invalid watch event: {}", with_causes(error))),
        }
    }

    pub(super) fn of_watcher(error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error) => Self::of_client(LIST, error),
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                Self::of_client(WATCH, error)
            }
            watcher::Error::WatchError(status) => {
                let (code, message) = (status.code, status.message.clone());
                Self::refused(WATCH, Refusal::Answered { code, message })
            }
            watcher::Error::NoResourceVersion => {
                Self::Malformed("an answer has no resourceVersion".to_owned())
            }
        }
    }

    /// Returns whether all objects must be listed again. Otherwise kube continues from the last event; on its own it
    /// keeps a version that the server rejects, and skips events that it cannot parse.
    pub(super) fn needs_list(&self) -> bool {
        match self {
            Self::Gone | Self::Malformed(_) => true,
            Self::Refused(verb, Refusal::Answered { code, .. }) => {
                *verb == WATCH && matches!(code, 400 | 422)
            }
            Self::Refused(..) => false,
        }
    }
}

pub(super) fn explain(verb: &str, resource: &str, namespace: &str, refusal: &Refusal) -> String {
    let (code, message) = match refusal {
        Refusal::Answered { code, message } => (*code, message),
        Refusal::Unreachable(why) | Refusal::OutOfBounds(why) => {
            return format!("the API server cannot be reached to {verb} {resource}: {why}");
        }
    };
    let said = match message.as_str() {
        "" => String::new(),
        message => format!("; the API server said: {message}"),
    };
    match code {
        403 => format!(
            "the router may not {verb} {resource} in namespace {namespace}: its service account needs a Role there that \
             allows get, list and watch of {resource} (docs/discovery.md){said}"
        ),
        401 => format!("the API server rejects the router's token{said}"),
        code => format!("the API server answered {code} to a {verb} of {resource}{said}"),
    }
}
