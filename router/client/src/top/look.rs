//! The data on the screen, and the polls that fetch it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use policy::exposition::samples;
use policy::text::printable;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::changes::{AuditedChange, changes};
use crate::ctl::client::Client;
use crate::ctl::{printable_json, workers};
use crate::unix_ms;

/// Polls shown in the curve.
const CURVE: usize = 240;
/// Entries of the audit log that are read for the changes.
const AUDITED: usize = 100;
/// Prefixes fetched per page, as many as fit. At most [`SHARED`] of the most shared ones are shown.
const PREFIXES: usize = 10;
const SHARED: usize = 3;
const LATE: usize = 10;
const TTFT_BUCKET: &str = "tailroute_time_to_first_token_seconds_bucket";

#[derive(Debug)]
pub(super) struct Screen {
    pub(super) router: String,
    pub(super) policy: Value,
    pub(super) workers: Vec<Value>,
    pub(super) objective: Value,
    /// Overload of the fleet; `null` without it.
    pub(super) overload: Value,
    pub(super) changes: Vec<AuditedChange>,
    /// Prefixes on the workers, the hottest first.
    pub(super) hottest: Vec<Hot>,
    /// The latest decisions with a late first token, newest first; `None` if the router keeps no decisions.
    pub(super) late: Option<Vec<Value>>,
    pub(super) now_unix_ms: f64,
    /// 95th percentile of TTFT between two polls, in ms; 0 if no turn ended.
    pub(super) p95_ms: VecDeque<u64>,
    /// Median, 95th and 99th percentile of TTFT of the latest poll with turns, in ms.
    pub(super) percentiles: Option<[f64; 3]>,
    pub(super) error: Option<String>,
    /// Time for which the present poll has not been answered.
    pub(super) silent_for: Duration,
    pub(super) help: bool,
    buckets: Option<BucketCounts>,
}

/// Cumulative number of turns by the upper bound of their bucket, in microseconds.
type BucketCounts = BTreeMap<u64, f64>;

impl Screen {
    pub(super) fn new(router: &str) -> Self {
        Self {
            router: router.to_owned(),
            policy: Value::Null,
            workers: Vec::new(),
            objective: Value::Null,
            overload: Value::Null,
            changes: Vec::new(),
            hottest: Vec::new(),
            late: None,
            now_unix_ms: 0.0,
            p95_ms: VecDeque::new(),
            percentiles: None,
            error: None,
            silent_for: Duration::ZERO,
            help: false,
            buckets: None,
        }
    }

    /// Stores the result of a poll.
    pub(super) fn show(&mut self, polled: Polled) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        self.workers = list(&polled.workers["workers"]);
        self.policy = polled.policy;
        self.objective = polled.objective;
        self.overload = polled.overload;
        self.changes = changes(&list(&polled.audit["entries"]));
        self.found(&polled.prefixes, polled.late);
        self.now_unix_ms = unix_ms();
        self.saw(buckets(&polled.page));
    }

    /// Stores a page of the most shared prefixes, one of the newest, and the late turns.
    pub(super) fn found(&mut self, [shared, newest]: &[Value; 2], mut late: Value) {
        self.hottest = hottest(shared, newest);
        let is_kept = late["capacity"] != 0;
        let late = late["decisions"].as_array_mut().map(std::mem::take);
        self.late = late.filter(|_| is_kept);
    }

    /// Acts on a key. Returns whether the user wants to end.
    pub(super) fn takes(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('?') => self.help = !self.help,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if control => return true,
            _ => {}
        }
        false
    }

    /// Stores the result of a poll, or its error, which leaves the rest of the screen unchanged.
    pub(super) fn note(&mut self, polled: anyhow::Result<Polled>) {
        match polled {
            Ok(polled) => {
                self.error = None;
                self.show(polled);
            }
            Err(error) => self.error = Some(printable(&format!("{error:#}")).into_owned()),
        }
    }

    fn saw(&mut self, now: BucketCounts) {
        // The first poll covers the time since the router's start.
        let before = self.buckets.take().unwrap_or_default();
        let since: BucketCounts = now
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

/// The result of a poll. All of it but the metrics page has escaped control characters.
#[derive(Debug)]
pub(super) struct Polled {
    workers: Value,
    policy: Value,
    objective: Value,
    overload: Value,
    audit: Value,
    /// A page of the most shared prefixes, and one of the newest.
    prefixes: [Value; 2],
    late: Value,
    page: String,
}

/// Polls the router. Fails if the router cannot be reached, or rejects a request.
pub(super) async fn poll(client: &Client) -> anyhow::Result<Polled> {
    let get = async |path: &str| Ok::<_, anyhow::Error>(printable_json(&client.get(path).await?));
    let index = async |order: &str| get(&format!("/admin/v1/index?order={order}&limit={PREFIXES}")).await;
    let mut slo = get("/admin/v1/slo").await?;
    Ok(Polled {
        workers: printable_json(&workers::all(client).await?),
        policy: get("/admin/v1/policy").await?,
        objective: slo["objective"].take(),
        overload: slo["overload"].take(),
        audit: get(&format!("/admin/v1/audit?limit={AUDITED}")).await?,
        prefixes: [index("shared").await?, index("newest").await?],
        late: get(&format!("/admin/v1/decisions?late=true&limit={LATE}")).await?,
        page: client.text("/metrics").await?,
    })
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hot {
    pub(super) prefix: String,
    /// Tokens of the prefix's longest copy, if known.
    pub(super) tokens: Option<u64>,
    /// Number of known continuations; 0 at a conversation's end.
    pub(super) forks: u64,
    /// Number of workers with any of the prefix's last run.
    pub(super) holders: u64,
    /// The worker with the longest copy.
    pub(super) worker: String,
}

/// Returns the most shared prefixes, followed by the most recently used ones.
fn hottest(shared: &Value, newest: &Value) -> Vec<Hot> {
    let listed = |page: &Value| page["prefixes"].as_array().cloned().unwrap_or_default();
    let mut all = listed(shared);
    all.truncate(SHARED);
    all.extend(listed(newest));
    let hot = |prefix: &Value| {
        let longest = &prefix["copies"][0];
        Hot {
            prefix: prefix["prefix"].as_str().unwrap_or_default().to_owned(),
            tokens: longest["tokens"].as_u64(),
            forks: prefix["forks"].as_u64().unwrap_or(0),
            holders: prefix["holders"].as_u64().unwrap_or(0),
            worker: longest["worker"].as_str().unwrap_or_default().to_owned(),
        }
    };
    all.iter().map(hot).collect()
}

/// Parses all TTFT buckets of a metrics page, whatever their other labels. Bounds are in microseconds.
fn buckets(page: &str) -> BucketCounts {
    let mut buckets = BucketCounts::new();
    for sample in samples(page, TTFT_BUCKET) {
        let Some(bound) = sample.label("le") else {
            continue;
        };
        let micros = match bound.parse::<f64>() {
            Ok(seconds) if seconds.is_finite() => (seconds * 1e6).round() as u64,
            _ => u64::MAX,
        };
        *buckets.entry(micros).or_insert(0.0) += sample.value;
    }
    buckets
}

/// Returns a percentile in milliseconds by linear interpolation within its bucket, or the last finite bound if it lies
/// beyond.
fn percentile(buckets: &BucketCounts, share: f64) -> Option<f64> {
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
    fn the_most_shared_prefixes_come_before_the_most_recently_used() {
        let prefix = |name: &str, forks: u32, copies: Value| json!({ "prefix": name, "forks": forks, "holders": 2, "copies": copies });
        let copies = json!([{ "worker": "one", "tokens": 300 }, { "worker": "two", "tokens": 100 }]);
        let shared: Vec<_> = (0..9)
            .map(|at| prefix(&at.to_string(), 9 - at, copies.clone()))
            .collect();
        let newest = [prefix("a", 1, json!([{ "worker": "two", "tokens": null }]))];
        let found = hottest(&json!({ "prefixes": shared }), &json!({ "prefixes": newest }));
        let told: Vec<_> = found
            .iter()
            .map(|hot| (&*hot.prefix, hot.forks, hot.tokens, &*hot.worker))
            .collect();
        assert_eq!(
            told,
            [
                ("0", 9, Some(300), "one"),
                ("1", 8, Some(300), "one"),
                ("2", 7, Some(300), "one"),
                ("a", 1, None, "two")
            ]
        );
    }

    #[test]
    fn the_help_is_opened_and_closed_by_a_key() {
        let mut screen = Screen::new("r");
        for (code, (ends, help)) in [
            (KeyCode::Char('?'), (false, true)),
            (KeyCode::Esc, (false, false)),
            (KeyCode::Char('?'), (false, true)),
            (KeyCode::Char('?'), (false, false)),
            (KeyCode::Char('c'), (false, false)),
            (KeyCode::Esc, (true, false)),
        ] {
            assert_eq!(
                (screen.takes(KeyEvent::from(code)), screen.help),
                (ends, help),
                "{code:?}"
            );
        }
        assert!(screen.takes(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    fn page(counts: [u32; 3]) -> String {
        let [a, b, all] = counts;
        format!(
            "{TTFT_BUCKET}{{worker=\"x\",le=\"0.1\"}} {a}\n{TTFT_BUCKET}{{worker=\"x\",le=\"0.2\"}} {b}\n\
             {TTFT_BUCKET}{{worker=\"x\",le=\"+Inf\"}} {all}\nother 3\n"
        )
    }

    #[test]
    fn percentiles_cover_the_time_between_two_polls() {
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
