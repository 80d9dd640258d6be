//! What people decided and what was learned outlives the process: over a restart with a snapshot, and over a hand-over
//! without one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use policy::cost::PrefillCost;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tailroute_e2e::child::{Child, free_address};
use tailroute_e2e::client::{CHAT, admin, call};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::{ask, words};

/// α of the engines, and the one that a router begins with.
const ALPHA: f64 = 0.276;
const DEFAULT: f64 = 0.1;
const ANSWERS: u64 = 150;
/// On a busy machine.
const LONG: Duration = Duration::from_secs(60);

async fn engine() -> Engine {
    let config = EngineConfig {
        prefill: PrefillCost::linear(ALPHA, 4.0),
        per_request_metrics: true,
        default_output_tokens: 1,
        time_scale: 1.0,
        tpot_ms: 1.0,
        ..quick()
    };
    Engine::start(config).await.unwrap()
}

/// A router that was decided about, and how its next process starts.
struct Scenario {
    engines: [Engine; 3],
    folder: tempfile::TempDir,
    address: SocketAddr,
    admin: SocketAddr,
    router: Child,
}

impl Scenario {
    /// Starts a router with these sections in front of `a` and `b`, lets it learn, and decides everything.
    async fn start(sections: impl Fn(&Path) -> String) -> Self {
        let engines = [engine().await, engine().await, engine().await];
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = [0, 1].map(|at| engines[at].addr());
        let text = format!(
            "[[workers]]\nname = \"a\"\nurl = \"http://{a}\"\n[[workers]]\nname = \"b\"\nurl = \"http://{b}\"\n\
             [health]\ninterval_ms = 200\ntimeout_ms = 200\nhealthy_after = 1\nunhealthy_after = 1000\n[learning]\nfade_s = 600\n[log]\nlevel = \"warn\"\n{}",
            sections(folder.path())
        );
        let config = folder.path().join("tailroute.toml");
        std::fs::write(&config, text).unwrap();
        let (address, admin) = (free_address(), free_address());
        let router = Child::router(address, admin, &config).await;
        let scenario = Self {
            engines,
            folder,
            address,
            admin,
            router,
        };
        scenario.decide().await;
        scenario
    }

    fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("tailroute.toml")
    }

    async fn get(&self, path: &str) -> Value {
        admin(self.admin, "GET", &format!("/admin/v1/{path}"), &[], None)
            .await
            .json()
    }

    async fn post(&self, path: &str, body: Value) {
        let answer = admin(self.admin, "POST", &format!("/admin/v1/{path}"), &[], Some(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    async fn put_weight(&self, pointer: &str, value: f64, seconds: Option<f64>) {
        let mut settings = self.get("policy").await["settings"].take();
        *settings.pointer_mut(pointer).unwrap() = value.into();
        let mut body = json!({ "settings": settings, "reason": "noon" });
        if let Some(seconds) = seconds {
            body["revert_after_s"] = seconds.into();
        }
        let headers = [("if-match", "*")];
        let answer = admin(self.admin, "PUT", "/admin/v1/policy", &headers, Some(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    async fn decide(&self) {
        self.until("both are ready", async || {
            let workers = self.get("workers").await;
            let mut workers = workers["workers"].as_array().unwrap().iter();
            workers.all(|worker| worker["state"] == "ready")
        })
        .await;
        self.post("workers/b/cordon", json!({ "reason": "broken fan" }))
            .await;
        let extra = json!({ "stream": true, "stream_options": { "include_usage": true } });
        for number in 0..ANSWERS {
            let prompt = words(1_000 + number, 20 + (number * 7_919 % 200) as usize);
            let answer = call(
                self.address,
                "POST",
                CHAT,
                &[],
                ask(&prompt, extra.clone()).to_string(),
            )
            .await;
            assert_eq!(answer.status, 200);
        }
        let worker = json!({ "name": "c", "url": format!("http://{}", self.engines[2].addr()) });
        self.post("workers", json!({ "worker": worker, "reason": "more work" }))
            .await;
        self.put_weight("/weights/locality", 1.75, Some(900.0)).await;
        self.put_weight("/weights/load", 1.5, None).await;
        let learned = self.until("costs are learned", async || {
            self.get("workers/a").await["cost_answers"].as_u64() >= Some(ANSWERS - 20)
        });
        learned.await;
        let found = self.alpha().await;
        assert!(
            (found - DEFAULT).abs() > 0.1 && (found / ALPHA - 1.0).abs() < 0.5,
            "{found}"
        );
    }

    async fn alpha(&self) -> f64 {
        self.get("workers/a").await["cost"]["alpha_ms_per_token"]
            .as_f64()
            .unwrap()
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < LONG, "{what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns everything that has to be the same in the next process.
    async fn decided(&self) -> Value {
        let policy = self.get("policy").await;
        let timers = policy["reverts"]["keys"].as_object().cloned().unwrap_or_default();
        let workers = self.get("workers").await;
        let workers = workers["workers"].as_array().unwrap().iter();
        let shown = |worker: &Value| {
            let is_cordoned = worker["state"] == "cordoned";
            json!([worker["name"], worker["source"], worker["url"], is_cordoned])
        };
        json!({
            "revision": policy["revision"],
            "settings": policy["settings"],
            "by": policy["by"],
            "timers": timers.keys().collect::<Vec<_>>(),
            "history": self.get("policy/history").await,
            "audit": self.get("audit?limit=3").await,
            "workers": workers.map(shown).collect::<Vec<_>>(),
        })
    }

    async fn has(&self, before: &Value, alpha: f64) {
        assert_eq!(self.decided().await, *before);
        let left = self.get("policy").await["reverts"]["in_s"].as_f64().unwrap();
        assert!(left < 900.0, "{left}");
        let found = self.alpha().await;
        assert!((found / alpha - 1.0).abs() < 0.05, "{found} after {alpha}");
        // The next entry of the audit log follows the last one, and so does the next revision.
        let last = before["audit"]["entries"][0]["number"].as_u64().unwrap();
        self.put_weight("/weights/load", 2.0, None).await;
        assert_eq!(self.get("audit?limit=1").await["entries"][0]["number"], last + 1);
        assert_eq!(
            self.get("policy").await["revision"].as_u64(),
            before["revision"].as_u64().map(|n| n + 1)
        );
        let answer = call(
            self.address,
            "POST",
            CHAT,
            &[],
            ask(&words(7, 30), json!({})).to_string(),
        )
        .await;
        assert_eq!(answer.status, 200);
        assert_ne!(answer.worker(), "b", "it is cordoned");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_and_costs_survive_a_restart_with_a_snapshot() {
    let snapshot = |folder: &Path| {
        format!(
            "[index]\nsnapshot_path = {:?}\n",
            folder.join("snapshot").display().to_string()
        )
    };
    let mut scenario = Scenario::start(snapshot).await;
    let (before, alpha) = (scenario.decided().await, scenario.alpha().await);
    scenario.router.signal("TERM");
    assert!(
        tokio::time::timeout(LONG, scenario.router.ends())
            .await
            .expect("it ends")
    );
    scenario.router = Child::router(scenario.address, scenario.admin, &scenario.config()).await;
    scenario.has(&before, alpha).await;

    // A decision is written at once: it survives `kill -9`. A time that passes meanwhile ends.
    scenario.put_weight("/kappa_max", 11.0, Some(8.0)).await;
    scenario
        .post("workers/b/uncordon", json!({ "reason": "new fan" }))
        .await;
    let (path, written) = (scenario.folder.path().join("snapshot"), Instant::now());
    scenario
        .until("the decision is written", async || {
            let bytes = std::fs::read(&path).unwrap_or_default();
            let has = |text: &[u8]| bytes.windows(text.len()).any(|found| found == text);
            has(b"new fan")
        })
        .await;
    scenario.router.kill();
    tokio::time::sleep(Duration::from_secs(9).saturating_sub(written.elapsed())).await;
    scenario.router = Child::router(scenario.address, scenario.admin, &scenario.config()).await;
    let policy = scenario.get("policy").await;
    assert_ne!(policy["settings"]["kappa_max"], 11.0);
    assert_eq!(
        policy["settings"]["weights"]["locality"], 1.75,
        "its time is not over"
    );
    let b = scenario.get("workers/b").await;
    assert_ne!(b["state"], "cordoned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_and_costs_survive_a_handover_without_a_snapshot() {
    let handover = |folder: &Path| {
        format!(
            "[server]\nhandover = {:?}\n",
            folder.join("handover").display().to_string()
        )
    };
    let mut scenario = Scenario::start(handover).await;
    let (before, alpha) = (scenario.decided().await, scenario.alpha().await);
    let next = Child::router(scenario.address, scenario.admin, &scenario.config()).await;
    assert!(
        tokio::time::timeout(LONG, scenario.router.ends())
            .await
            .expect("it ends")
    );
    scenario.router = next;
    scenario.has(&before, alpha).await;
}
