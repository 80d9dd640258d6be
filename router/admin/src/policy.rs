//! Returns, changes and rolls back the policy in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::{HeaderMap, Method, header};
use config::{PolicyDocument, Role};
use policy::route::Settings;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::audit::Newest;
use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use super::reason::Reason;
use crate::Admin;
use config::OF_HEADER;
pub(super) use operator::revisions::timers::LONGEST_S;
use operator::revisions::{Change, Revision, RevisionSource, Stale, Timer, Timers};
use replicas::bucket::BucketError;
use replicas::live_policy::ChangeError;

/// The policy in force.
#[derive(Debug, Serialize, JsonSchema)]
struct PolicyView {
    #[serde(flatten)]
    now: Arc<Revision>,
    /// Entity tag of the revision, for If-Match.
    etag: String,
    /// Whether the settings are those of `[routing]` in the configuration as it was last read.
    as_configured: bool,
    /// Settings of `[routing]` in the configuration as it was last read; absent if they are in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PolicyDocument>")]
    configured: Option<Settings>,
    /// Revision whose settings this request has restored; absent unless it is a rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored_revision: Option<u64>,
    /// Classes whose turns may have separate settings (`classes`); `header` is that of turns that carry their
    /// objective in a header.
    turn_classes: Vec<String>,
    /// Temporary values in force, and when they end; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reverts: Option<Reverts>,
}

/// The end of temporary values.
#[derive(Debug, Serialize, JsonSchema)]
struct Reverts {
    /// Seconds until the first of them ends.
    in_s: f64,
    /// End of each temporary value, by its key: a JSON pointer into `settings`.
    keys: BTreeMap<String, Ending>,
}

/// The end of a temporary value.
#[derive(Debug, Serialize, JsonSchema)]
struct Ending {
    /// Seconds until the value ends.
    in_s: f64,
    /// The value that returns; `null` if the key is absent then.
    to: Option<serde_json::Value>,
    /// Revision that set the temporary value.
    since_revision: u64,
}

/// Body of a change of the policy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Put {
    /// The new policy, with all of its weights.
    settings: PolicyDocument,
    /// Reason for the change, recorded in the audit log.
    reason: Reason,
    /// Seconds after which the values that this request changes return to the lasting ones; if absent, the change is
    /// lasting. Later changes of other values do not affect this.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = LONGEST_S))]
    revert_after_s: Option<f64>,
}

/// Body of a rollback.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rollback {
    /// Revision whose settings are restored. If absent, it is the last one before the current that was not temporary,
    /// and its temporary values are left out.
    #[serde(default)]
    to_revision: Option<u64>,
    /// Reason for the change, recorded in the audit log.
    reason: Reason,
}

/// Revisions of the policy.
#[derive(Debug, Serialize, JsonSchema)]
struct PolicyHistory {
    /// Revisions, newest first; the first is in force.
    revisions: Vec<Arc<Revision>>,
}

pub(super) fn operations() -> Vec<Operation> {
    const POLICY: &str = "/admin/v1/policy";
    const TAG: &str = "The revision's entity tag";
    vec![
        Operation::new::<PolicyView, _, _>(
            "policy.get",
            Method::GET,
            POLICY,
            Role::Read,
            "The policy in force with all of its weights",
            |call: Call| async move {
                let (now, timers) = call.admin.state.routing.policy.now();
                shown(&call.admin, now, &timers, None)
            },
        )
        .carries("etag", TAG),
        Operation::new::<PolicyView, _, _>(
            "policy.put",
            Method::PUT,
            POLICY,
            Role::Admin,
            "Change the policy, effective from the next request",
            put,
        )
        .reads(
            "if-match",
            "The entity tag of the revision that is changed, or *",
            true,
        )
        .body::<Put>()
        .carries("etag", TAG)
        .fails(&[412, 428, 503]),
        Operation::get::<PolicyHistory, _, _>(
            "policy.history",
            "/admin/v1/policy/history",
            "Earlier policies, newest first",
            history,
        )
        .query::<Newest>(),
        Operation::new::<PolicyView, _, _>(
            "policy.rollback",
            Method::POST,
            "/admin/v1/policy/rollback",
            Role::Admin,
            "Restore the settings of an earlier revision exactly",
            rollback,
        )
        .reads(
            "if-match",
            "The entity tag of the revision that is in force, or *",
            false,
        )
        .body::<Rollback>()
        .carries("etag", TAG)
        .fails(&[409, 412, 503]),
    ]
}

fn shown(
    admin: &Admin,
    now: Arc<Revision>,
    timers: &Timers,
    restored_revision: Option<u64>,
) -> Result<Reply, Problem> {
    let etag = admin.state.routing.policy.tag(now.revision);
    let clock = admin.state.routing.clock.now();
    let ending = |timer: &Timer| Ending {
        in_s: ((timer.due - clock).0 / 1e3).max(0.0),
        to: timer.back_to.clone(),
        since_revision: timer.since,
    };
    let keys: BTreeMap<String, Ending> = timers
        .iter()
        .map(|(key, timer)| (key.clone(), ending(timer)))
        .collect();
    let first = keys.values().map(|ending| ending.in_s).reduce(f64::min);
    let reverts = first.map(|in_s| Reverts { in_s, keys });
    let live = admin.state.routing.live();
    let classes = live.objective.classes.iter().map(|class| class.name.clone());
    let configured = admin.state.routing.policy.configured();
    let as_configured = now.settings == configured;
    let shown = PolicyView {
        turn_classes: classes.chain([OF_HEADER.to_owned()]).collect(),
        as_configured,
        configured: (!as_configured).then_some(configured),
        restored_revision,
        etag: etag.clone(),
        reverts,
        now,
    };
    Ok(Reply::json(&shown)?.with(header::ETAG, &etag))
}

async fn put(call: Call) -> Result<Reply, Problem> {
    let admin = &call.admin;
    let put: Put = call.body()?;
    let expected = expected(admin, &call.headers)?.ok_or_else(Problem::precondition_required)?;
    let change = Change {
        settings: settings(admin, &put.settings)?,
        by: call.who.name.to_string(),
        reason: Some(put.reason.0),
        source: RevisionSource::Put,
        revert_after: put.revert_after_s.map(|seconds| Millis(seconds * 1e3)),
        sets: BTreeSet::new(),
    };
    change_policy(admin, change, expected, None).await
}

pub(super) fn settings(admin: &Admin, document: &PolicyDocument) -> Result<Settings, Problem> {
    let live = admin.state.routing.live();
    let settings = document.settings("settings", &live.objective.classes);
    settings.map_err(|problems| Problem::invalid(&problems))
}

async fn rollback(call: Call) -> Result<Reply, Problem> {
    let admin = &call.admin;
    let asked: Rollback = call.body()?;
    let expected = expected(admin, &call.headers)?;
    let (now, _) = admin.state.routing.policy.now();
    // Without If-Match, the revision read here is the expected one.
    let expected = expected.flatten().unwrap_or(now.revision);
    // A revision made by another replica may not have arrived here yet. Revision 0 is never in force.
    let changed = if expected == 0 { now.revision } else { expected };
    let to = match asked.to_revision {
        None => admin
            .state
            .routing
            .policy
            .lasting_before(changed)
            .ok_or_else(|| Problem::conflict("there is no lasting revision before this one"))?,
        Some(number) => admin.state.routing.policy.find(number).ok_or_else(|| {
            Problem::invalid_field(
                "to_revision",
                format!("revision {number} is not in the history; `history` lists the available ones"),
            )
        })?,
    };
    let change = Change {
        settings: match asked.to_revision {
            None => to.lasting(),
            Some(_) => to.settings.clone(),
        },
        by: call.who.name.to_string(),
        reason: Some(asked.reason.0),
        source: RevisionSource::Rollback,
        revert_after: None,
        sets: BTreeSet::new(),
    };
    change_policy(admin, change, Some(expected), Some(to.revision)).await
}

async fn change_policy(
    admin: &Admin,
    change: Change,
    expected: Option<u64>,
    restored_revision: Option<u64>,
) -> Result<Reply, Problem> {
    let stale = |revision| {
        Problem::precondition_failed(format!(
            "revision {revision} is now in force: GET it and check whether the change is still wanted"
        ))
    };
    let made = match &admin.bus {
        None => admin
            .state
            .change_policy(change, expected)
            .map_err(|Stale(revision)| stale(revision))?,
        Some(bus) => {
            let made = bus.change_policy(&admin.state, &change, expected).await;
            made.map_err(|error| match error {
                ChangeError::Stale(revision) => stale(revision),
                ChangeError::Unwritten(why @ BucketError::Long(_)) => {
                    Problem::invalid_field("settings", why.to_string())
                }
                ChangeError::Gone(_) | ChangeError::Unread(_) | ChangeError::Unwritten(_) => {
                    Problem::unavailable(error.to_string())
                }
            })?
        }
    };
    // Shows the revision as this change made it, regardless of later changes.
    let shown = shown(admin, Arc::clone(&made.after), &made.timers, restored_revision)?;
    Ok(shown.changed(&made.before, &made.after))
}

/// Returns the revision in If-Match: `None` without the field, `Some(None)` for `*`.
fn expected(admin: &Admin, headers: &HeaderMap) -> Result<Option<Option<u64>>, Problem> {
    let mut named = None;
    let (now, _) = admin.state.routing.policy.now();
    for value in headers.get_all(header::IF_MATCH) {
        let value = value
            .to_str()
            .map_err(|_| Problem::malformed("If-Match is not a list of entity tags"))?;
        for tag in value.split(',').map(str::trim) {
            if tag == "*" {
                return Ok(Some(None));
            }
            // Another replica's newer revision may not have arrived here yet. Revision 0 is never in force.
            let number = admin
                .state
                .routing
                .policy
                .number(tag)
                .filter(|number| *number >= now.revision);
            let number = number.unwrap_or(0);
            if number == now.revision || named != Some(now.revision) {
                named = named.filter(|_| number != now.revision).max(Some(number));
            }
        }
    }
    Ok(named.map(Some))
}

async fn history(call: Call) -> Result<Reply, Problem> {
    let query: Newest = call.query()?;
    let mut revisions = call.admin.state.routing.policy.history();
    revisions.truncate(query.limit);
    Reply::json(&PolicyHistory { revisions })
}
