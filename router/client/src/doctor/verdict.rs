use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The check found nothing wrong.
    Ok,
    /// A fact that the check needs is missing.
    Unknown,
    /// The examined part works, but less well than it could.
    Warning,
    /// The examined part does not work as intended.
    Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckVerdict {
    pub(super) status: Status,
    /// The observation, as a sentence without its full stop.
    pub(super) found: String,
    pub(super) action: Option<String>,
}

impl CheckVerdict {
    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self {
            status: Status::Ok,
            found: found.into(),
            action: None,
        }
    }

    /// Creates a verdict of nothing wrong that suggests an action nevertheless.
    pub(super) fn note(found: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            status: Status::Ok,
            found: found.into(),
            action: Some(action.into()),
        }
    }

    pub(super) fn unknown(found: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            status: Status::Unknown,
            found: found.into(),
            action: Some(action.into()),
        }
    }

    pub(super) fn warning(found: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            status: Status::Warning,
            found: found.into(),
            action: Some(action.into()),
        }
    }

    pub(super) fn problem(found: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            status: Status::Problem,
            found: found.into(),
            action: Some(action.into()),
        }
    }
}

/// The result of a check, with its name and the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Name of the worker; `null` for a check of the router.
    pub worker: Option<String>,
    pub status: Status,
    /// The observation, as a sentence without its full stop.
    pub found: String,
    /// The suggested action; `null` if there is none.
    pub action: Option<String>,
}

impl Finding {
    pub(super) fn new(check: &'static str, worker: Option<String>, verdict: CheckVerdict) -> Self {
        let CheckVerdict {
            status,
            found,
            action,
        } = verdict;
        Self {
            check,
            worker,
            status,
            found,
            action,
        }
    }

    /// Returns whether nothing is wrong, but an action is suggested.
    pub fn is_note(&self) -> bool {
        self.status == Status::Ok && self.action.is_some()
    }
}

pub(super) fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
