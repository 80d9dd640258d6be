//! `tailroute ctl policy`. A change is a GET and a PUT with its entity tag, so that no concurrent change is lost.

pub(super) mod settings;
mod show;

use anyhow::Context as _;
use http::Method;
use policy::hint_rule::HintRule;
use serde_json::{Value, json};

use self::settings::apply;
use super::answer::{CommandOutput, printable_json};
use super::client::Client;

const POLICY: &str = "/admin/v1/policy";
const SHADOW: &str = "/admin/v1/policy/shadow";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Policy {
    /// The policy in force with all of its weights; marks those that differ from the configuration.
    Show,
    /// Change settings: `policy=NAME`, `weights.locality=1.2`, `kappa_max=20`; of a class of turns,
    /// `classes.CLASS.weights.slo=2`; of a policy that requests select by name, `named.NAME.policy=least_ttft`.
    /// `null` removes an override.
    #[command(
        after_help = "Examples:\n  tailroute ctl policy set weights.locality=1.2 weights.slo=0.1 --reason 'noon' --for 10m\n  tailroute ctl policy set classes.batch.weights.locality=2 --reason 'batch can wait'\n  tailroute ctl policy set classes.batch=null --reason 'same as the others'"
    )]
    Set {
        /// The changes, each as KEY=VALUE.
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
        /// Revert to the current policy after this time: 90, 90s, 10m, 2h or 1d; a number alone is seconds.
        #[arg(long = "for", value_name = "TIME", value_parser = simulator::args::seconds)]
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
        /// The revision; by default the last one before the current one that was not temporary.
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
        #[arg(required_unless_present = "hint_rule", value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// Rule of hints to preview: queue-aware, t-lru, both or off; that in force unless given.
        #[arg(long)]
        hint_rule: Option<HintRule>,
        /// Number of newest turns to replay; 5,000 unless given.
        #[arg(long)]
        turns: Option<u32>,
        /// Report even if the simulation does not reproduce the measured times within a factor of 1.5.
        #[arg(long)]
        anyway: bool,
    },
    /// The shadow policy: where it would have sent the turns.
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

pub(super) async fn run(client: &Client, what: Policy) -> anyhow::Result<CommandOutput> {
    match what {
        Policy::Show => Ok(CommandOutput::new(client.get(POLICY).await?, show::policy)),
        Policy::Set {
            changes,
            reason,
            revert_after_s,
        } => {
            let (shown, settings, tag) = changed(client, &changes).await?;
            let body = json!({ "settings": settings, "reason": reason, "revert_after_s": revert_after_s });
            let answer = client.send_matching(Method::PUT, POLICY, &body, &tag).await?;
            let shown = printable_json(&shown);
            Ok(CommandOutput::new(answer, |after| {
                show::changed(&shown["settings"], after)
            }))
        }
        Policy::History { limit } => history(client, limit as usize).await,
        Policy::Rollback { to, reason } => {
            let before = printable_json(&client.get(POLICY).await?["settings"]);
            let body = json!({ "to_revision": to, "reason": reason });
            let answer = client
                .send(Method::POST, "/admin/v1/policy/rollback", &body)
                .await?;
            Ok(CommandOutput::new(answer, |after| show::changed(&before, after)))
        }
        Policy::Preview {
            changes,
            hint_rule,
            turns,
            anyway,
        } => {
            let (_, settings, _) = changed(client, &changes).await?;
            let body =
                json!({ "settings": settings, "hint_rule": hint_rule, "turns": turns, "anyway": anyway });
            let answer = client
                .send(Method::POST, "/admin/v1/policy/preview", &body)
                .await?;
            Ok(CommandOutput::new(answer, show::preview))
        }
        Policy::Shadow => shadow(client, client.get(SHADOW).await?).await,
        Policy::ShadowSet { changes, reason } => {
            let (_, settings, _) = changed(client, &changes).await?;
            let body = json!({ "settings": settings, "reason": reason });
            shadow(client, client.send(Method::PUT, SHADOW, &body).await?).await
        }
        Policy::ShadowStop { reason } => {
            let body = json!({ "reason": reason });
            let answer = client
                .send(Method::POST, "/admin/v1/policy/shadow/stop", &body)
                .await?;
            shadow(client, answer).await
        }
    }
}

/// Fetches the newest revisions, and one more, which the last of them is compared with.
async fn history(client: &Client, limit: usize) -> anyhow::Result<CommandOutput> {
    let more = (limit + 1).min(1000);
    let mut answer = client.get(&format!("{POLICY}/history?limit={more}")).await?;
    let text = show::history(&printable_json(&answer), limit);
    if let Some(revisions) = answer["revisions"].as_array_mut() {
        revisions.truncate(limit);
    }
    Ok(CommandOutput { json: answer, text })
}

async fn shadow(client: &Client, answer: Value) -> anyhow::Result<CommandOutput> {
    let in_force = printable_json(&client.get(POLICY).await?["settings"]);
    Ok(CommandOutput::new(answer, |shadow| {
        show::shadow(shadow, &in_force)
    }))
}

/// Returns the current policy, its settings with these changes, and its entity tag.
async fn changed(client: &Client, changes: &[String]) -> anyhow::Result<(Value, Value, String)> {
    let shown = client.get(POLICY).await?;
    let tag = shown["etag"]
        .as_str()
        .context("the router reported no revision")?
        .to_owned();
    let mut settings = shown["settings"].clone();
    for change in changes {
        apply(&mut settings, change)?;
    }
    Ok((shown, settings, tag))
}
