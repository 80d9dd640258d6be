//! The stories of the golden test: requests to fleets in various states.
//!
//! A story is a configuration, engines and steps. It depends only on its name, so the recorded results need nothing
//! beside this file. After a change here, record again with `TAILROUTE_BLESS=1`.

mod requests;

use serde_json::{Value, json};
use tailroute_e2e::talk::{chat, with, words};

use self::requests::{endpoints, malformed, paths};
use crate::engine::{Fault, SAID};

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A client sends a request and reads the response.
    Ask(Ask),
    /// A client sends a request whose response is delayed.
    Leave(Ask),
    /// The delayed requests are answered.
    Answer,
    /// This number of milliseconds passes.
    Pass(u64),
    /// Sets an engine's fault.
    Fault(usize, Fault),
    /// An operator's request: method, path, body.
    Operate(&'static str, String, Value),
}

/// A fleet and its steps.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) name: String,
    /// The configuration, without ports and workers.
    pub(crate) config: String,
    /// Configuration keys of each worker.
    pub(crate) worker: String,
    pub(crate) engines: usize,
    /// Whether the engines support hints between requests.
    pub(crate) takes_hints: bool,
    pub(crate) steps: Vec<Step>,
}

/// A deterministic random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % sides as u64) as usize
    }
}

const POLICIES: [&str; 10] = [
    "tail",
    "round_robin",
    "least_loaded",
    "cache_aware",
    "cache_aware_smg",
    "least_ttft",
    "random",
    "power_of_two",
    "consistent_hash",
    "prefix_hash",
];
const CHAT: &str = "/v1/chat/completions";

pub(crate) fn stories() -> Vec<Story> {
    let mut all: Vec<Story> = POLICIES.iter().map(|policy| of_policy(policy)).collect();
    all.push(endpoints());
    all.push(malformed());
    all.push(paths());
    all.extend(["tailroute", "vllm_xargs", "kv_hints", "tensorrt_llm", "none"].map(dialect));
    all.extend(["lowest_first", "highest_first"].map(priority));
    all.push(full());
    all.push(broken());
    all.push(held());
    all.push(keys());
    all.push(overrides());
    all.push(sessions());
    all
}

fn story(name: impl Into<String>, config: impl Into<String>, steps: Vec<Step>) -> Story {
    Story {
        name: name.into(),
        config: config.into(),
        worker: String::new(),
        engines: 4,
        takes_hints: false,
        steps,
    }
}

fn post(path: &str, body: impl Into<Vec<u8>>) -> Ask {
    Ask {
        method: "POST",
        path: path.to_owned(),
        headers: vec![("content-type", "application/json".to_owned())],
        body: body.into(),
    }
}

impl Ask {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Conversations that continue in random order.
struct Talks {
    dice: Dice,
    open: Vec<Vec<(String, String)>>,
    begun: u64,
    live: usize,
}

impl Talks {
    fn new(seed: u64, live: usize) -> Self {
        Self {
            dice: Dice(seed),
            open: Vec::new(),
            begun: 0,
            live,
        }
    }

    /// Returns the next turn of one of them, with the conversation's number.
    fn turn(&mut self, extra: &Value) -> (usize, Ask) {
        let at = self.dice.roll(self.live);
        if at >= self.open.len() {
            self.begun += 1;
            let system = words(self.begun % 3, 150 + 100 * (self.begun as usize % 3));
            self.open.push(vec![("system".to_owned(), system)]);
        }
        let at = at.min(self.open.len() - 1);
        let said = words(1_000 + self.dice.roll(1 << 20) as u64, 20 + self.dice.roll(200));
        let talk = &mut self.open[at];
        talk.push(("user".to_owned(), said));
        let messages: Vec<(&str, &str)> = talk
            .iter()
            .map(|(role, text)| (role.as_str(), text.as_str()))
            .collect();
        let stream = messages.len() % 4 == 2;
        let extra = with(json!({ "stream": stream }), extra.clone());
        let ask = post(CHAT, chat(&messages, extra).to_string());
        talk.push(("assistant".to_owned(), SAID.to_owned()));
        (at, ask)
    }

    fn turns(&mut self, count: usize) -> Vec<Step> {
        (0..count)
            .flat_map(|_| {
                let wait = 20 * self.dice.roll(50) as u64;
                [Step::Pass(wait), Step::Ask(self.turn(&json!({})).1)]
            })
            .collect()
    }
}

/// Turns under one policy: on an idle fleet, and with queues at some workers.
fn of_policy(policy: &str) -> Story {
    let mut talks = Talks::new(7, 9);
    let mut steps = talks.turns(24);
    for _ in 0..3 {
        for _ in 0..2 {
            let (_, ask) = talks.turn(&json!({ "user": "waits" }));
            steps.push(Step::Leave(ask));
        }
        steps.extend(talks.turns(5));
        steps.push(Step::Answer);
    }
    let config = format!("[routing]\npolicy = \"{policy}\"\n");
    story(format!("policy/{policy}"), config, steps)
}

/// Conversations that grow and end, in a worker's dialect.
fn dialect(dialect: &str) -> Story {
    let mut talks = Talks::new(11, 6);
    let mut steps = Vec::new();
    for number in 0..36 {
        let (talk, mut ask) = talks.turn(&json!({}));
        ask = ask.with("x-session-id", format!("talk-{talk}"));
        if number % 9 == 8 {
            ask = ask.with("x-session-end", "1");
        }
        steps.extend([Step::Ask(ask), Step::Pass(700)]);
    }
    let mut told = story(format!("dialect/{dialect}"), "[hints]\nprotect_from = 2\n", steps);
    told.worker = format!("dialect = \"{dialect}\"\ncapacity_tokens = 3200\n");
    told.takes_hints = dialect == "tailroute";
    told.engines = 2;
    told
}

fn priority(order: &str) -> Story {
    let mut told = story(format!("priority/{order}"), "", Talks::new(13, 4).turns(12));
    told.worker = format!("priority = \"{order}\"\n");
    told
}

/// More conversations than the caches hold, on engines that take hints.
fn full() -> Story {
    let mut told = story(
        "full",
        "[objective]\nttft_ms = 120\n",
        Talks::new(17, 40).turns(260),
    );
    told.worker = "capacity_tokens = 4000\n".to_owned();
    told.takes_hints = true;
    told.engines = 3;
    told
}

/// Workers that fail in every way, and recover.
fn broken() -> Story {
    let mut talks = Talks::new(19, 8);
    let mut steps = talks.turns(6);
    for (engine, fault) in [
        (0, Fault::Status(500)),
        (1, Fault::Status(503)),
        (2, Fault::Status(429)),
        (3, Fault::Closes),
        (0, Fault::Breaks),
        (1, Fault::Status(400)),
    ] {
        steps.push(Step::Fault(engine, fault));
        steps.extend(talks.turns(8));
        steps.push(Step::Fault(engine, Fault::None));
        steps.push(Step::Pass(3_000));
        steps.extend(talks.turns(2));
    }
    steps.extend((0..4).map(|engine| Step::Fault(engine, Fault::Closes)));
    steps.extend(talks.turns(4));
    story("broken", "", steps)
}

/// Workers that an operator drains and restores, one after another and all at once.
fn held() -> Story {
    let mut talks = Talks::new(23, 6);
    let mut steps = talks.turns(6);
    let say = |worker: usize, what: &str| {
        let mut body = json!({ "reason": "a test" });
        if what != "uncordon" {
            body["force"] = json!(true);
        }
        Step::Operate("POST", format!("/admin/v1/workers/gpu-{worker}/{what}"), body)
    };
    for worker in 0..4 {
        steps.push(say(worker, if worker % 2 == 0 { "cordon" } else { "drain" }));
        steps.extend(talks.turns(4));
    }
    for worker in 0..4 {
        steps.push(say(worker, "uncordon"));
        steps.extend(talks.turns(3));
    }
    story("held", "", steps)
}

/// Clients with keys, two of one tenant, some with limits.
fn keys() -> Story {
    let mut config = String::new();
    // The SHA-256 hash of `secret` of each name.
    for (name, tenant, sha256, rest) in [
        (
            "a",
            "one",
            "8ea25237a2a69b96c36fee9b251413eb8fd9e8749d2bb2ecd1e2465f8eb12288",
            "",
        ),
        (
            "a2",
            "one",
            "b860fee2ee22badd6e8ed431132ecacd18345efada36d45aaffa82e6b19d060f",
            "explain = true\n",
        ),
        (
            "b",
            "two",
            "8049bf5569ba544fca70044d9a0f2711201a605e7a0a78f71c2975a5c6c0dd2f",
            "requests_per_s = 0.1\nrequests_burst = 3\n",
        ),
        (
            "c",
            "three",
            "10e1156d162dbe9a73b05c2b23d012eb8f29d0987261ecb4b1fad8f7a5b036dc",
            "tokens_per_min = 3000\n",
        ),
    ] {
        config.push_str(&format!(
            "[[keys]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{sha256}\"\n{rest}"
        ));
    }
    let mut talks = Talks::new(29, 3);
    let mut steps = Vec::new();
    for round in 0..18 {
        let (_, ask) = talks.turn(&json!({}));
        for name in ["a", "a2", "b", "c"] {
            let mut own = ask
                .clone()
                .with("authorization", format!("Bearer {}", secret(name)));
            if round % 3 == 0 {
                own = own.with("x-session-id", "shared");
            }
            steps.extend([Step::Ask(own), Step::Pass(500)]);
        }
        let stranger = match round % 3 {
            0 => ask.clone(),
            1 => ask.clone().with("authorization", "Bearer nobody"),
            _ => ask.clone().with("x-api-key", secret("a")),
        };
        steps.push(Step::Ask(stranger));
    }
    story("keys", config, steps)
}

fn secret(name: &str) -> String {
    format!("tr-a-long-enough-secret-of-{name}")
}

/// Objectives and weights by class and by request.
fn overrides() -> Story {
    let config = r#"
[[objective.classes]]
name = "batch"
ttft_ms = 30000
[[objective.classes]]
name = "chat"
ttft_ms = 150
[routing.classes.batch]
policy = "round_robin"
[routing.classes.chat.weights]
slo = 3.0
[routing.named.near.weights]
locality = 4.0
[routing.requests]
named = true
weights = ["slo", "locality"]
"#;
    let asks: [(&str, &str); 9] = [
        ("x-slo-class", "batch"),
        ("x-slo-class", "chat"),
        ("x-slo-ttft-ms", "90"),
        ("x-llm-d-slo-ttft-ms", "5000"),
        ("x-tailroute-policy", "near"),
        ("x-tailroute-policy", "slo=2"),
        ("x-tailroute-policy", "slo=2,locality=0.5"),
        ("x-tailroute-policy", "home=9"),
        ("x-slo-class", "unknown"),
    ];
    let mut talks = Talks::new(31, 6);
    let mut steps = Vec::new();
    for round in 0..6 {
        for (name, value) in asks {
            let ask = talks.turn(&json!({})).1.with(name, value);
            steps.extend([Step::Ask(ask), Step::Pass(40 * round)]);
        }
    }
    story("overrides", config, steps)
}

/// The ways to identify the conversation of a turn.
fn sessions() -> Story {
    let mut talks = Talks::new(37, 5);
    let mut steps = Vec::new();
    for round in 0..5 {
        for (name, value) in [
            ("x-session-id", "s-1"),
            ("x-conversation-id", "c-1"),
            ("x-user-id", "u-1"),
            ("session-id", "s-2"),
            ("x-session-end", "true"),
        ] {
            steps.push(Step::Ask(talks.turn(&json!({})).1.with(name, value)));
        }
        for extra in [
            json!({ "prompt_cache_key": "k" }),
            json!({ "user": "u" }),
            json!({ "session_id": "s" }),
            json!({ "metadata": { "conversation": "m" } }),
            json!({ "cache_salt": "salt" }),
        ] {
            steps.push(Step::Ask(talks.turn(&extra).1));
        }
        steps.push(Step::Pass(1_000 * round));
    }
    story("sessions", "[routing.weights]\naffinity_ms = 30.0\n", steps)
}
