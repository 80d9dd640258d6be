//! Lists of names of Kubernetes objects and DNS records.

use crate::sections::checker::Checker;

/// Length of the longest name of a Kubernetes object or DNS record.
pub(crate) const LONGEST_NAME: usize = 253;
const MOST_NAMES: usize = 64;

pub(crate) fn check_list(names: &[String], path: &str, checker: &mut Checker<'_>) {
    if names.len() > MOST_NAMES {
        let what = format!("{} names; expected at most {MOST_NAMES}", names.len());
        checker.report(path, what, None);
    }
    let twice = (1..names.len()).find(|&at| names[..at].contains(&names[at]));
    if let Some(at) = twice {
        checker.report(
            &format!("{path}[{at}]"),
            format!("{:?} is listed twice", names[at]),
            None,
        );
    }
}
