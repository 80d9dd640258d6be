use crate::draft::ConfigDraft;
use crate::given::ParsedOption;

/// Policies of the sources, each with the nearest policy of tailroute, and the difference.
const POLICIES: &[(&str, &str, &str)] = &[
    ("random", "random", ""),
    ("round_robin", "round_robin", ""),
    ("cache_aware", "cache_aware", ""),
    ("power_of_two", "power_of_two", ""),
    ("prefix_hash", "prefix_hash", ""),
    (
        "consistent_hash",
        "consistent_hash",
        "hashes the conversation: X-Session-ID, or the conversation that the prompt continues; other headers and `user` are not read",
    ),
    (
        "consistent_hashing",
        "consistent_hash",
        "hashes the conversation (X-Session-ID) in place of X-SMG-Routing-Key",
    ),
    (
        "rendezvous_hash",
        "consistent_hash",
        "hashes the conversation (X-Session-ID), by rendezvous hashing too",
    ),
    (
        "manual",
        "consistent_hash",
        "hashes the conversation (X-Session-ID) and keeps no table of routing keys",
    ),
    (
        "least_load",
        "least_loaded",
        "counts requests in flight; `tail` predicts the work of each request",
    ),
    (
        "sticky_round_robin",
        "consistent_hash",
        "a conversation keeps its worker by its hash, not by turns",
    ),
    (
        "sticky_least_loaded",
        "tail",
        "`tail` keeps conversations where their prefixes are cached, and weighs that against load",
    ),
    (
        "kv_aware",
        "tail",
        "`tail` follows the engines' cache events (workers.kv_events)",
    ),
];

pub(super) fn policy(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let name = given.one()?;
    match POLICIES.iter().find(|(theirs, ..)| *theirs == name) {
        Some((_, ours, differs)) => {
            draft.set("routing.policy", *ours, given.shown());
            if !differs.is_empty() {
                draft.note(given.shown(), format!("becomes {ours}: {differs}"));
            }
        }
        None => {
            let why = "no policy of this kind; tailroute's own, `tail`, is used";
            draft.note(given.shown(), why);
        }
    }
    Ok(())
}
