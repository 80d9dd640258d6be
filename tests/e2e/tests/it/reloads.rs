//! Configuration reloads while the router serves.

use std::path::Path;
use std::sync::Arc;

use admin::Admin;
use config::Overrides;
use operator::audit::AuditRecord;
use operator::secret::hash;
use policy::units::{Millis, Tokens};
use protocol::tenant::hex;
use serde_json::{Value, json};
use sim_engine::Engine;
use tailroute::reload::{self, ConfigSource};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{metrics, quick};
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::{PATIENCE, until};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::admission::{bearer, secret};

struct Running {
    router: Server,
    source: ConfigSource,
    worker: String,
    _engine: Engine,
}

impl Running {
    /// Watches the files. Returns the parts, the request of a reload, and the task, once the files were read.
    async fn watch(&self) -> (Arc<Admin>, Arc<Notify>, JoinHandle<()>) {
        let (parts, asked) = (Arc::clone(self.router.parts()), Arc::new(Notify::new()));
        let watching = reload::watch(Arc::clone(&parts), self.source.clone(), Arc::clone(&asked));
        let watching = tokio::spawn(watching);
        asked.notify_one();
        until("the files are watched", || {
            parts.state.operations.operator.reloads.lock().generation >= 2
        })
        .await;
        (parts, asked, watching)
    }

    /// Starts a router with this configuration file.
    async fn start(file: &Path, extra: &str) -> Self {
        let engine = Engine::start(quick()).await.unwrap();
        let worker = format!("[[workers]]\nurl = \"http://{}\"\n", engine.addr());
        std::fs::write(file, format!("{worker}{extra}")).unwrap();
        let source = ConfigSource {
            file: Some(file.to_owned()),
            overrides: Overrides {
                listen: Some("127.0.0.1:0".to_owned()),
                admin: Some("127.0.0.1:0".to_owned()),
                ..Overrides::default()
            },
            ..ConfigSource::default()
        };
        let router = Server::start(source.load().unwrap()).await.unwrap();
        assert!(router.wait_ready(PATIENCE).await);
        Self {
            router,
            source,
            worker,
            _engine: engine,
        }
    }

    fn reload(&self, extra: &str) -> Vec<AuditRecord> {
        let file = self.source.file.as_ref().unwrap();
        std::fs::write(file, format!("{}{extra}", self.worker)).unwrap();
        reload::reload(self.router.parts(), &self.source)
    }

    /// The outcome of the reloads, without the facts about the router beside it.
    async fn state(&self) -> Value {
        let answer = client::admin(self.router.admin_address, "GET", "/admin/v1/config", &[], None).await;
        let mut state: Value = answer.json();
        for fact in ["started_unix_ms", "listen", "keys_required"] {
            assert!(state.as_object_mut().unwrap().remove(fact).is_some(), "{fact}");
        }
        state
    }

    async fn ask(&self, name: &str) -> u16 {
        let (bearer, body) = (bearer(name), ask("hi", json!({})).to_string());
        let headers = [("authorization", bearer.as_str())];
        let answer = client::call(self.router.address, "POST", CHAT, &headers, body).await;
        answer.status.as_u16()
    }
}

fn key(name: &str) -> String {
    let digest = hex(&hash(secret(name).as_bytes()).0);
    format!("[[keys]]\nname = {name:?}\nsha256 = {digest:?}\n")
}

#[tokio::test]
async fn a_reload_applies_changeable_keys_and_names_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&folder.path().join("t.toml"), &key("a")).await;
    let parts = running.router.parts();
    assert_eq!((running.ask("a").await, running.ask("b").await), (200, 401));
    let happened = running.reload(&format!(
        "[routing]\npolicy = \"random\"\n[objective]\nttft_ms = 77\n[limits]\nretries = 0\n{}",
        key("b")
    ));
    let [policy, read] = happened.as_slice() else {
        panic!("{happened:?}");
    };
    assert_eq!(
        (&*policy.target, &*read.target, &*read.action),
        ("policy", "config", "config.reload")
    );
    let (_, after) = read.outcome.clone().unwrap();
    assert_eq!(
        after.unwrap()["keys"],
        json!({ "added": ["b"], "removed": ["a"], "changed": [] })
    );
    assert_eq!((running.ask("a").await, running.ask("b").await), (401, 200));
    assert_eq!(
        parts.state.routing.policy.load().settings.policy,
        config::PolicyName::Random
    );
    let live = parts.state.routing.live();
    assert_eq!((live.objective.ttft, live.limits.retries), (Millis(77.0), 0));
    let state = running.state().await;
    assert_eq!(
        state,
        json!({ "generation": 2, "refused": null, "needs_restart": [] })
    );
    running.reload(&format!("[routing]\ntokens_per_byte = 0.4\n{}", key("b")));
    assert_eq!(
        running.state().await["needs_restart"],
        json!(["routing.tokens_per_byte"]),
        "what is learned began with the old one"
    );
}

/// A reload keeps the last valid configuration, and reports the error:
/// <https://github.com/llm-d/llm-d-router/issues/2849>.
#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&folder.path().join("t.toml"), &key("a")).await;
    for (wrong, why) in [
        (
            "[routing]\npolcy = \"tail\"\n".to_owned(),
            "did you mean `policy`?",
        ),
        ("[routing\n".to_owned(), "not TOML"),
        (
            key("a").replace("sha256 = \"", "sha256 = \"0"),
            "64 hexadecimal digits",
        ),
        (
            format!(
                "{}[tls]\ncert_file = \"/nowhere/c\"\nkey_file = \"/nowhere/k\"\n",
                key("a")
            ),
            "/nowhere/c",
        ),
        // An empty file, as when it is being written.
        (String::new(), "would admit clients without keys"),
    ] {
        let happened = running.reload(&wrong);
        let refused = happened[0].outcome.clone().unwrap_err();
        assert!(refused.contains(why), "{refused}");
        let state = running.state().await;
        let refused = state["refused"].as_str().unwrap();
        assert!(refused.contains(why), "{refused}");
        assert_eq!((&state["generation"], running.ask("a").await), (&json!(1), 200));
    }
    let page = metrics(&running.router).await;
    assert_eq!(
        page.sum("tailroute_config_reloads_total", &[("outcome", "refused")]),
        5.0
    );
    let slow = "[hints]\nprotect_from = 3\n[explain]\nin_answers = true\n";
    running.reload(&format!("{slow}{}", key("a")));
    let state = running.state().await;
    assert_eq!(
        state,
        json!({ "generation": 2, "refused": null, "needs_restart": ["hints.protect_from", "explain"] })
    );
}

#[tokio::test]
async fn a_mounted_file_of_keys_is_read_again_when_its_link_is_swapped() {
    let folder = tempfile::tempdir().unwrap();
    // As Kubernetes mounts a Secret: keys.toml → ..data/keys.toml, and ..data is swapped.
    let version = |number: u32, keys: &str| {
        let of_this = folder.path().join(format!("..{number}"));
        std::fs::create_dir(&of_this).unwrap();
        std::fs::write(of_this.join("keys.toml"), keys).unwrap();
        std::os::unix::fs::symlink(&of_this, folder.path().join("..new")).unwrap();
        std::fs::rename(folder.path().join("..new"), folder.path().join("..data")).unwrap();
    };
    version(1, &key("a"));
    let mounted = folder.path().join("keys.toml");
    std::os::unix::fs::symlink("..data/keys.toml", &mounted).unwrap();
    let extra = format!("[admission]\nkeys_file = {:?}\n", mounted.display().to_string());
    let running = Running::start(&folder.path().join("t.toml"), &extra).await;
    let (parts, asked, watching) = running.watch().await;
    assert_eq!((running.ask("a").await, running.ask("b").await), (200, 401));
    version(2, &key("b"));
    until("the keys are read again", || {
        parts.state.operations.operator.reloads.lock().generation >= 3
    })
    .await;
    assert_eq!((running.ask("a").await, running.ask("b").await), (401, 200));
    let before = parts.state.operations.operator.reloads.lock().generation;
    asked.notify_one();
    until("SIGHUP reads it even if nothing changed", || {
        parts.state.operations.operator.reloads.lock().generation > before
    })
    .await;
    watching.abort();
}

#[tokio::test]
async fn a_file_that_a_reload_adds_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("t.toml"), folder.path().join("keys.toml"));
    let running = Running::start(&file, "").await;
    let (parts, _, watching) = running.watch().await;
    std::fs::write(&keys, key("a")).unwrap();
    let extra = format!("[admission]\nkeys_file = {:?}\n", keys.display().to_string());
    std::fs::write(&file, format!("{}{extra}", running.worker)).unwrap();
    until("the keys are read", || parts.proxy.admission.keys().is_required()).await;
    std::fs::write(&keys, key("beta")).unwrap();
    let mut headers = http::HeaderMap::new();
    headers.insert("authorization", bearer("beta").parse().unwrap());
    until("the keys are read again", || {
        parts.proxy.admission.keys().identify(&headers).is_ok()
    })
    .await;
    watching.abort();
}

#[tokio::test]
async fn requests_in_flight_are_settled_with_the_key_in_force_at_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let limited = format!("{}tokens_per_min = 1000\n", key("a"));
    let running = Running::start(&folder.path().join("t.toml"), &limited).await;
    let admission = &running.router.parts().proxy.admission;
    let mut headers = http::HeaderMap::new();
    headers.insert("authorization", bearer("a").parse().unwrap());
    let left = || {
        let mut answer = http::HeaderMap::new();
        admission
            .keys()
            .identify(&headers)
            .unwrap()
            .mark(&mut answer, fleet::clock::Clock::start());
        answer["x-ratelimit-remaining-tokens"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    // No tokens come back meanwhile.
    tokio::time::pause();
    let caller = admission.keys().identify(&headers).unwrap();
    let clock = running.router.parts().state.routing.clock;
    let mut charge = caller.charge(clock, Tokens(600)).unwrap();
    running.reload(&limited);
    assert_eq!(left(), "400");
    charge.give_back();
    assert_eq!(left(), "1000");
}
