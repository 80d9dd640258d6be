//! `tailroute ctl policy`. A change is a GET and a PUT with the entity tag that was read, so that concurrent changes
//! are not lost.

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::{Value, json};

use super::client::Client;
use super::pair;
use super::show;

const POLICY: &str = "/admin/v1/policy";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Policy {
    /// The policy in force with all of its weights.
    Show,
    /// Change settings: `policy=NAME`, `weights.locality=1.2`, `kappa_max=20`; of a class of turns,
    /// `classes.CLASS.weights.slo=2`; of a policy that requests select by name, `named.NAME.policy=least_ttft`.
    /// `null` removes an override.
    #[command(
        after_help = "Examples:\n  tailroute ctl policy set weights.locality=1.2 weights.slo=0.1 --reason 'noon' --for 600\n  tailroute ctl policy set classes.batch.weights.locality=2 --reason 'batch can wait'\n  tailroute ctl policy set classes.batch=null --reason 'same as the others'"
    )]
    Set {
        /// The changes, each as KEY=VALUE.
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
        /// Revert to the current policy after this many seconds.
        #[arg(long = "for", value_name = "SECONDS")]
        revert_after_s: Option<f64>,
    },
    /// Earlier policies, newest first.
    History {
        /// Maximum number of entries.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Restore an earlier revision exactly.
    Rollback {
        /// The revision; by default the previous one.
        #[arg(long, value_name = "REVISION")]
        to: Option<u64>,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
    /// Replay the captured turns with changed settings.
    #[command(
        after_help = "Example:\n  tailroute ctl capture start --reason 'weights for noon'\n  tailroute ctl policy preview weights.locality=1.2"
    )]
    Preview {
        /// The changes, each as KEY=VALUE.
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// Number of newest turns to replay; 5,000 unless given.
        #[arg(long)]
        turns: Option<u32>,
    },
    /// What the shadow policy would have done.
    Shadow,
    /// Evaluate a policy on live traffic without routing by it.
    ShadowSet {
        /// The shadow policy's differences, each as KEY=VALUE.
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
    /// Stop the shadow policy.
    ShadowStop {
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
}

pub(super) async fn run(client: &Client, what: Policy) -> anyhow::Result<(Value, fn(&Value) -> String)> {
    Ok(match what {
        Policy::Show => (client.get(POLICY).await?, show::policy),
        Policy::Set {
            changes,
            reason,
            revert_after_s,
        } => {
            let (settings, tag) = changed(client, &changes).await?;
            let body = json!({ "settings": settings, "reason": reason, "revert_after_s": revert_after_s });
            let answer = client
                .send_matching(Method::PUT, POLICY, &body, Some(&tag))
                .await?;
            (answer, show::policy)
        }
        Policy::History { limit } => {
            let answer = client.get(&format!("{POLICY}/history?limit={limit}")).await?;
            (answer, show::history)
        }
        Policy::Rollback { to, reason } => {
            let body = json!({ "to_revision": to, "reason": reason });
            let answer = client
                .send(Method::POST, "/admin/v1/policy/rollback", &body)
                .await?;
            (answer, show::policy)
        }
        Policy::Preview { changes, turns } => {
            let (settings, _) = changed(client, &changes).await?;
            let body = json!({ "settings": settings, "turns": turns });
            let answer = client
                .send(Method::POST, "/admin/v1/policy/preview", &body)
                .await?;
            (answer, show::preview)
        }
        Policy::Shadow => (client.get("/admin/v1/policy/shadow").await?, show::pretty),
        Policy::ShadowSet { changes, reason } => {
            let (settings, _) = changed(client, &changes).await?;
            let body = json!({ "settings": settings, "reason": reason });
            (
                client.send(Method::PUT, "/admin/v1/policy/shadow", &body).await?,
                show::pretty,
            )
        }
        Policy::ShadowStop { reason } => {
            let body = json!({ "reason": reason });
            let answer = client
                .send(Method::POST, "/admin/v1/policy/shadow/stop", &body)
                .await?;
            (answer, show::pretty)
        }
    })
}

/// Returns the current settings with these changes, and the current entity tag.
async fn changed(client: &Client, changes: &[String]) -> anyhow::Result<(Value, String)> {
    let mut shown = client.get(POLICY).await?;
    let tag = shown["etag"]
        .as_str()
        .context("the router reported no revision")?
        .to_owned();
    let mut settings = shown["settings"].take();
    for change in changes {
        apply(&mut settings, change)?;
    }
    Ok((settings, tag))
}

/// Applies one change. The router validates the keys.
fn apply(settings: &mut Value, change: &str) -> anyhow::Result<()> {
    let (key, value) = pair(change, "weights.locality=1.2").map_err(anyhow::Error::msg)?;
    let no_such = || format!("{key}: no such key; `tailroute ctl policy show` lists them");
    let parts = parts(&key);
    let Some((last, sections)) = parts.split_last() else {
        bail!("{change}: expected KEY=VALUE, such as weights.locality=1.2")
    };
    let mut place = settings;
    for (depth, section) in sections.iter().enumerate() {
        let Some(entries) = place.as_object_mut() else {
            bail!(no_such());
        };
        // Create the override if it does not exist.
        if depth > 0 && is_of_overrides(parts[0]) && !entries.contains_key(*section) {
            entries.insert((*section).to_owned(), json!({}));
        }
        place = entries.get_mut(*section).with_context(no_such)?;
    }
    let entries = place.as_object_mut().with_context(no_such)?;
    entries.insert((*last).to_owned(), value);
    Ok(())
}

fn is_of_overrides(section: &str) -> bool {
    matches!(section, "classes" | "named")
}

/// Splits a key into its parts. A class name may contain dots: `classes.gpt-4.5.weights.slo` belongs to `gpt-4.5`.
fn parts(key: &str) -> Vec<&str> {
    let Some((section, rest)) = key
        .split_once('.')
        .filter(|(section, _)| is_of_overrides(section))
    else {
        return key.split('.').collect();
    };
    if let Some((name, weight)) = rest.rsplit_once(".weights.") {
        return vec![section, name, "weights", weight];
    }
    let of_override = |key: &str| matches!(key, "policy" | "kappa_max" | "weights");
    match rest.rsplit_once('.').filter(|(_, key)| of_override(key)) {
        Some((name, key)) => vec![section, name, key],
        None => vec![section, rest],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_applied_to_their_keys() {
        let mut settings = json!({ "policy": "tail", "weights": { "load": 1.0 } });
        apply(&mut settings, "policy=random").unwrap();
        apply(&mut settings, "weights.load=2").unwrap();
        assert_eq!(settings, json!({ "policy": "random", "weights": { "load": 2 } }));
        for wrong in ["load", "weight.load=1", "policy.x=1"] {
            assert!(apply(&mut settings, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_missing_override_is_created_by_its_first_change() {
        let mut settings = json!({ "classes": {}, "named": {} });
        for change in [
            "classes.gpt-4.5.weights.slo=2",
            "classes.gpt-4.5.policy=least_ttft",
            "classes.v1.0=null",
            "named.fast.kappa_max=3",
        ] {
            apply(&mut settings, change).unwrap();
        }
        let classes = json!({ "gpt-4.5": { "weights": { "slo": 2 }, "policy": "least_ttft" }, "v1.0": null });
        assert_eq!(
            settings,
            json!({ "classes": classes, "named": { "fast": { "kappa_max": 3 } } })
        );
    }
}
