//! What the screen shows, as it was found by looking.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::super::ctl::client::Client;
use super::super::ctl::workers;

/// Looks that the curve shows.
const CURVE: usize = 240;
/// Changes that are shown.
const CHANGES: usize = 5;
/// Decisions that conversations are found in, and late turns that are shown: all that there is room for.
const DECISIONS: usize = 200;
const LATE: usize = 10;
const TTFT_BUCKET: &str = "tailroute_time_to_first_token_seconds_bucket";

/// The screen.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) router: String,
    pub(super) policy: Value,
    pub(super) workers: Vec<Value>,
    pub(super) objective: Value,
    pub(super) changes: Vec<Value>,
    /// What most of the last prompts consisted of, the hottest first.
    pub(super) hottest: Vec<Hot>,
    /// The last decisions whose first token came too late, the newest first; none if no decisions are kept.
    pub(super) late: Option<Vec<Value>>,
    /// When it was looked.
    pub(super) now_unix_ms: f64,
    /// 95th percentile of TTFT between two looks, in ms; 0 where no turn ended.
    pub(super) p95_ms: VecDeque<u64>,
    /// Median, 95th and 99th percentile of the last look that saw turns.
    pub(super) percentiles: Option<[f64; 3]>,
    /// Why the last look found nothing.
    pub(super) error: Option<String>,
    buckets: Option<Buckets>,
}

/// Turns by the upper bound of their bucket, cumulative.
type Buckets = BTreeMap<u64, f64>;

impl Screen {
    /// Of a router that was not looked at yet.
    pub(super) fn new(router: &str) -> Self {
        Self {
            router: router.to_owned(),
            policy: Value::Null,
            workers: Vec::new(),
            objective: Value::Null,
            changes: Vec::new(),
            hottest: Vec::new(),
            late: None,
            now_unix_ms: 0.0,
            p95_ms: VecDeque::new(),
            percentiles: None,
            error: None,
            buckets: None,
        }
    }

    /// Looks again.
    ///
    /// # Errors
    /// If the router cannot be reached, or refuses.
    pub(super) async fn look(&mut self, client: &Client) -> anyhow::Result<()> {
        let listed = workers::all(client).await?;
        self.workers = listed["workers"].as_array().cloned().unwrap_or_default();
        self.policy = client.get("/admin/v1/policy").await?;
        self.objective = client.get("/admin/v1/slo").await?["objective"].take();
        let audit = client.get(&format!("/admin/v1/audit?limit={CHANGES}")).await?;
        self.changes = audit["entries"].as_array().cloned().unwrap_or_default();
        let decisions = async |query: &str| client.get(&format!("/admin/v1/decisions?{query}")).await;
        let recent = decisions(&format!("limit={DECISIONS}")).await?;
        let late = decisions(&format!("late=true&limit={LATE}")).await?;
        self.found(&recent, late);
        self.now_unix_ms = unix_ms();
        let page = client.text("/metrics").await?;
        self.saw(buckets(&page));
        Ok(())
    }

    /// Takes pages of decisions: the last ones, and the late ones of them.
    pub(super) fn found(&mut self, recent: &Value, mut late: Value) {
        self.hottest = hottest(recent);
        let is_kept = late["capacity"] != 0;
        let late = late["decisions"].as_array_mut().map(std::mem::take);
        self.late = late.filter(|_| is_kept);
    }

    /// Says on the screen what came of a look.
    pub(super) fn note(&mut self, looked: anyhow::Result<()>) {
        self.error = looked.err().map(|error| format!("{error:#}"));
    }

    fn saw(&mut self, now: Buckets) {
        // The first look shows what there was since the router's start.
        let before = self.buckets.take().unwrap_or_default();
        let since: Buckets = now
            .iter()
            .map(|(bound, count)| {
                (
                    *bound,
                    (count - before.get(bound).copied().unwrap_or(0.0)).max(0.0),
                )
            })
            .collect();
        self.buckets = Some(now);
        let found = [50.0, 95.0, 99.0].map(|share| percentile(&since, share));
        self.p95_ms.push_back(found[1].map_or(0, |ms| ms as u64));
        if self.p95_ms.len() > CURVE {
            self.p95_ms.pop_front();
        }
        if let [Some(p50), Some(p95), Some(p99)] = found {
            self.percentiles = Some([p50, p95, p99]);
        }
    }
}

/// A prefix that prompts begin with: a conversation's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hot {
    /// The conversation's name, hashed.
    pub(super) conversation: String,
    /// Of its last turn: its length in tokens, and how much of that was cached where it went.
    pub(super) tokens: u64,
    pub(super) cached: u64,
    /// Where it went.
    pub(super) worker: String,
    /// Turns of it among the decisions, and the tokens of all of their prompts.
    pub(super) turns: u64,
    asked: u64,
}

/// The conversations of a page of decisions, by what was asked of them.
fn hottest(page: &Value) -> Vec<Hot> {
    let mut all: Vec<Hot> = Vec::new();
    // The newest come first.
    for decision in page["decisions"].as_array().into_iter().flatten() {
        let Some(name) = decision["conversation"].as_str() else {
            continue;
        };
        let tokens = decision["prompt_tokens"].as_u64().unwrap_or(0);
        let at = all
            .iter()
            .position(|hot| hot.conversation == name)
            .unwrap_or_else(|| {
                all.push(Hot {
                    conversation: name.to_owned(),
                    tokens,
                    cached: decision["terms"][0]["cached_tokens"].as_u64().unwrap_or(0),
                    worker: decision["worker"].as_str().unwrap_or_default().to_owned(),
                    turns: 0,
                    asked: 0,
                });
                all.len() - 1
            });
        all[at].turns += 1;
        all[at].asked += tokens;
    }
    all.sort_by_key(|hot| std::cmp::Reverse(hot.asked));
    all
}

fn unix_ms() -> f64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

/// All TTFT buckets of a metrics page, whatever their other labels; bounds in microseconds.
fn buckets(page: &str) -> Buckets {
    let mut buckets = Buckets::new();
    for line in page.lines().filter(|line| line.starts_with(TTFT_BUCKET)) {
        let bound = line.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
        // An exemplar may follow the value.
        let value = line.split_once("} ").and_then(|(_, rest)| rest.split(' ').next());
        let (Some(bound), Some(Ok(count))) = (bound, value.map(str::parse::<f64>)) else {
            continue;
        };
        let micros = match bound.parse::<f64>() {
            Ok(seconds) if seconds.is_finite() => (seconds * 1e6).round() as u64,
            _ => u64::MAX,
        };
        *buckets.entry(micros).or_insert(0.0) += count;
    }
    buckets
}

/// Linear within its bucket; the last bound where it lies beyond all of them.
fn percentile(buckets: &Buckets, share: f64) -> Option<f64> {
    let all = buckets
        .last_key_value()
        .map(|(_, count)| *count)
        .filter(|all| *all > 0.0)?;
    let wanted = all * share / 100.0;
    let (mut below, mut count_below) = (0_u64, 0.0);
    for (bound, count) in buckets {
        if *count >= wanted {
            if *bound == u64::MAX {
                return Some(below as f64 / 1e3);
            }
            let within = (wanted - count_below) / (count - count_below).max(f64::MIN_POSITIVE);
            return Some((below as f64 + within * (bound - below) as f64) / 1e3);
        }
        (below, count_below) = (*bound, *count);
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hottest_conversation_is_the_one_that_most_prompt_tokens_were_asked_of() {
        let decision = |name: serde_json::Value, tokens: u64, worker: &str| json!({ "conversation": name, "prompt_tokens": tokens, "worker": worker, "terms": [{ "cached_tokens": tokens / 2 }] });
        let page = json!({ "decisions": [
            decision(json!("a"), 300, "two"), decision(json!("b"), 450, "one"), decision(json!(null), 9999, "one"),
            decision(json!("a"), 200, "one"),
        ] });
        let found = hottest(&page);
        let told: Vec<_> = found
            .iter()
            .map(|hot| (&*hot.conversation, hot.turns, hot.tokens, &*hot.worker))
            .collect();
        // Of the newest turn it says where it lives.
        assert_eq!(told, [("a", 2, 300, "two"), ("b", 1, 450, "one")]);
    }

    fn page(counts: [u32; 3]) -> String {
        let [a, b, all] = counts;
        format!(
            "{TTFT_BUCKET}{{worker=\"x\",le=\"0.1\"}} {a}\n{TTFT_BUCKET}{{worker=\"x\",le=\"0.2\"}} {b}\n\
             {TTFT_BUCKET}{{worker=\"x\",le=\"+Inf\"}} {all}\nother 3\n"
        )
    }

    #[test]
    fn percentiles_are_of_the_time_between_two_looks() {
        let mut screen = Screen::new("r");
        screen.saw(buckets(&page([100, 100, 100])));
        assert_eq!(screen.percentiles.unwrap()[0], 50.0);
        screen.saw(buckets(&page([100, 110, 110])));
        assert_eq!(screen.percentiles.unwrap()[0], 150.0);
        screen.saw(buckets(&page([100, 110, 110])));
        assert_eq!(screen.p95_ms, [95, 195, 0], "no turn ended");
        assert_eq!(screen.percentiles.unwrap()[0], 150.0, "what was known last stays");
        screen.saw(buckets(&page([100, 110, 120])));
        assert_eq!(screen.percentiles.unwrap()[2], 200.0, "beyond the last bound");
    }
}
