//! The list of changes, from the audit log.

use serde_json::Value;

const CHANGES: usize = 5;

/// A change, or refusals of the same operation by the same caller.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AuditedChange {
    pub(super) entry: Value,
    pub(super) count: u64,
}

pub(super) fn changes(entries: &[Value]) -> Vec<AuditedChange> {
    let mut changes: Vec<AuditedChange> = Vec::new();
    for entry in entries {
        let count = 1 + entry["left_out"].as_u64().unwrap_or(0);
        let is_alike = |known: &&mut AuditedChange| {
            let same = |key: &str| known.entry[key] == entry[key];
            entry["outcome"] == "refused"
                && same("outcome")
                && same("action")
                && known.entry["who"]["name"] == entry["who"]["name"]
        };
        match changes.iter_mut().find(is_alike) {
            Some(known) => known.count += count,
            None => changes.push(AuditedChange {
                entry: entry.clone(),
                count,
            }),
        }
    }
    changes.truncate(CHANGES);
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn similar_refusals_are_counted_in_one_line() {
        let entry = |who: &str, action: &str, outcome: &str, left_out: u32| json!({ "who": { "name": who }, "action": action, "outcome": outcome, "left_out": left_out });
        let entries = [
            entry("eve", "policy.put", "refused", 7),
            entry("alice", "policy.put", "applied", 0),
            entry("eve", "policy.put", "refused", 0),
            entry("alice", "policy.put", "applied", 0),
            entry("eve", "workers.drain", "refused", 0),
        ];
        let counts: Vec<_> = changes(&entries).iter().map(|change| change.count).collect();
        assert_eq!(counts, [9, 1, 1, 1]);
    }
}
