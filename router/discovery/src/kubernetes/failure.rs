//! Why a watcher did not go on, and what an operator can do about it.

use kube::runtime::watcher;
use tailroute_http::error::with_causes;

use super::transport::Refusal;

/// Why the watcher did not go on.
pub(super) enum Failure {
    /// The server no longer knows the version of the last event.
    Gone,
    /// The server refused the request, or could not be reached.
    Refused(&'static str, Refusal),
    /// An answer makes no sense, or is out of bounds.
    Malformed(String),
}

const LIST: &str = "list";
const WATCH: &str = "watch";

impl Failure {
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
            // A line that is no event: kube takes any JSON object for a status.
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

    /// Whether everything has to be listed again. Otherwise the watcher continues from the last event: kube does so by
    /// itself, but keeps a version that the server refuses, and skips an event that it cannot parse.
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

/// What is wrong, and what to do about it.
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
