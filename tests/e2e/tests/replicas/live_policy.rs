//! One live policy for all replicas, in the shared bucket.

use std::time::Instant;

use serde_json::{Value, json};
use tailroute_e2e::client::{self, Whole};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::until;

use super::nats::Nats;
use super::{CONVERGED_WITHIN, Replicas, join};

const POLICY: &str = "/admin/v1/policy";

impl Replicas {
    pub(crate) async fn policy(&self, router: usize) -> Value {
        self.admin(router, POLICY).await.json()
    }

    /// Changes a weight on one router, based on the policy `of`.
    pub(crate) async fn put(&self, router: usize, of: &Value, locality: f64) -> Whole {
        self.put_with(router, of, locality, json!({})).await
    }

    async fn put_with(&self, router: usize, of: &Value, locality: f64, more: Value) -> Whole {
        let mut settings = of["settings"].clone();
        settings["weights"]["locality"] = json!(locality);
        let mut body = json!({ "settings": settings, "reason": "a test" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let headers = [("if-match", of["etag"].as_str().unwrap())];
        let address = self.routers[router].admin_address;
        client::admin(address, "PUT", POLICY, &headers, Some(&body)).await
    }

    pub(crate) fn locality(&self, router: usize) -> f64 {
        self.routers[router]
            .parts()
            .state
            .routing
            .policy
            .load()
            .settings
            .weights
            .locality
    }

    pub(crate) async fn all_have(&self, locality: f64) {
        for router in 0..self.routers.len() {
            until("the change is in force everywhere", || {
                self.locality(router) == locality
            })
            .await;
        }
    }

    pub(crate) async fn share_their_policy(&self) {
        for router in &self.routers {
            until("the bucket's policy is in force", || {
                router.parts().state.routing.policy.is_shared()
            })
            .await;
        }
    }

    async fn sources(&self, router: usize) -> Vec<String> {
        let history = self.admin(router, "/admin/v1/policy/history").await.json();
        let revisions = history["revisions"].as_array().unwrap().iter();
        revisions
            .map(|revision| revision["source"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Returns the reason of a rejected change.
pub(crate) fn detail(refused: &Whole) -> String {
    refused.json()["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_change_applies_to_all_routers_and_one_of_two_concurrent_ones_is_rejected() {
    let replicas = Replicas::start(3, vec![quick()]).await;
    replicas.share_their_policy().await;
    let before = replicas.policy(2).await;
    assert_eq!(
        before["etag"],
        replicas.policy(0).await["etag"],
        "one tag for all"
    );
    let made = replicas.put(0, &before, 2.5).await;
    assert_eq!(made.status, 200, "{}", made.text());
    // Its entity tag is valid on another router at once, whether that has received the change or not.
    let again = replicas.put(1, &made.json(), 2.75).await;
    assert_eq!(again.status, 200, "{}", again.text());
    replicas.all_have(2.75).await;
    let late = replicas.put(2, &before, 9.0).await;
    assert_eq!(late.status, 412, "{}", late.text());
    assert!(
        detail(&late).contains("revision 3 is now in force"),
        "{}",
        late.text()
    );

    let now = replicas.policy(0).await;
    let (one, other) = tokio::join!(replicas.put(0, &now, 3.0), replicas.put(1, &now, 4.0));
    let mut statuses = [one.status.as_u16(), other.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412], "{} {}", one.text(), other.text());
    let kept = if one.status == 200 { 3.0 } else { 4.0 };
    replicas.all_have(kept).await;

    let body = json!({ "reason": "back", "to_revision": 1 });
    let address = replicas.routers[1].admin_address;
    let path = "/admin/v1/policy/rollback";
    let back = client::admin(address, "POST", path, &[], Some(&body)).await;
    assert_eq!(back.status, 200, "{}", back.text());
    replicas
        .all_have(before["settings"]["weights"]["locality"].as_f64().unwrap())
        .await;
    assert_eq!(
        replicas.sources(2).await,
        ["rollback", "put", "put", "put", "start"]
    );
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn every_routers_audit_log_has_author_reason_and_replica() {
    let replicas = Replicas::start(2, vec![quick()]).await;
    replicas.share_their_policy().await;
    let made = replicas.put(0, &replicas.policy(0).await, 2.5).await;
    assert_eq!(made.status, 200, "{}", made.text());
    replicas.all_have(2.5).await;
    for (router, action) in [(0, "policy.put"), (1, "policy.adopt")] {
        let entry = loop {
            let audit = replicas.admin(router, "/admin/v1/audit").await.json();
            let entries = audit["entries"].as_array().unwrap().clone();
            if let Some(entry) = entries.into_iter().find(|entry| entry["action"] == action) {
                break entry;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(entry["who"]["name"], "loopback", "{entry}");
        assert_eq!(entry["why"], "a test", "{entry}");
        assert_eq!(entry["after"]["replica"], "router-0", "{entry}");
        assert_eq!(entry["after"]["revision"], 2, "{entry}");
    }
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn without_nats_a_policy_change_is_rejected() {
    let mut replicas = Replicas::start(2, vec![quick()]).await;
    replicas.share_their_policy().await;
    let before = replicas.policy(0).await;
    assert_eq!(replicas.put(0, &before, 2.5).await.status, 200);
    replicas.all_have(2.5).await;
    replicas.nats.kill();
    for router in 0..2 {
        let bus = replicas.routers[router].parts().bus.as_ref().unwrap();
        until("it knows that NATS is gone", || !bus.is_up()).await;
        let shown = replicas.policy(router).await;
        let refused = replicas.put(router, &shown, 7.0).await;
        assert_eq!(refused.status, 503);
        let why = detail(&refused);
        assert!(
            why.contains("NATS is not connected") && why.contains("nothing was changed"),
            "{why}"
        );
        assert!(why.contains("Try again when GET /admin/v1/replicas"), "{why}");
        assert_eq!(replicas.locality(router), 2.5, "what was in force stays");
        let told = replicas.says_of_the_others(router).await;
        assert_eq!(told["policy"]["changeable"], false, "{told}");
    }

    replicas.nats.revive().await;
    let back = Instant::now();
    replicas.hear_of_each_other().await;
    let late = join(&replicas.engines, &replicas.nats.url(), "late").await;
    replicas.routers.push(late);
    replicas.all_have(2.5).await;
    let mut changed = replicas.put(2, &replicas.policy(2).await, 3.5).await;
    while changed.status == 503 {
        // The bucket becomes available some time after its server.
        assert!(back.elapsed() < CONVERGED_WITHIN, "{}", changed.text());
        changed = replicas.put(2, &replicas.policy(2).await, 3.5).await;
    }
    assert_eq!(changed.status, 200, "{}", changed.text());
    replicas.all_have(3.5).await;
    assert!(back.elapsed() < CONVERGED_WITHIN, "{:?}", back.elapsed());
    assert_eq!(replicas.sources(2).await, ["put", "put", "start"]);
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_temporary_change_is_reverted_once_on_all_routers() {
    let replicas = Replicas::start(2, vec![quick()]).await;
    replicas.share_their_policy().await;
    let before = replicas.policy(0).await;
    // Long enough to be seen on all routers.
    let put = replicas
        .put_with(0, &before, 2.5, json!({ "revert_after_s": 4 }))
        .await;
    assert_eq!(put.status, 200, "{}", put.text());
    replicas.all_have(2.5).await;
    let begun = before["settings"]["weights"]["locality"].as_f64().unwrap();
    replicas.all_have(begun).await;
    for router in 0..2 {
        let now = replicas.policy(router).await;
        assert_eq!((&now["source"], &now["revision"]), (&json!("revert"), &json!(3)));
    }
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn without_jetstream_each_router_has_and_reports_its_own_policy() {
    let nats = Nats::start_with(false).await;
    let replicas = Replicas::start_by(nats, 2, vec![quick()]).await;
    for router in 0..2 {
        let bus = replicas.routers[router].parts().bus.as_ref().unwrap();
        until("it knows that there is no bucket", || bus.has_own_policy()).await;
        let told = replicas.says_of_the_others(router).await;
        assert_eq!(
            (&told["policy"]["shared"], &told["policy"]["changeable"]),
            (&json!(false), &json!(true))
        );
        let why = told["policy"]["error"].as_str().unwrap();
        assert!(why.contains("no JetStream"), "{why}");
    }
    let begun = replicas.locality(1);
    let made = replicas.put(0, &replicas.policy(0).await, 2.5).await;
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!((replicas.locality(0), replicas.locality(1)), (2.5, begun));
}
