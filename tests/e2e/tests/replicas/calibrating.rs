//! A calibration pushed to one router takes effect on all.

use serde_json::json;
use tailroute_e2e::client::{self, Whole};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::{until, within};

use super::{Replicas, join};

impl Replicas {
    async fn push(&self, router: usize, alpha: f64) -> Whole {
        let name = self.engines[0].addr().to_string();
        let path = format!("/admin/v1/workers/{name}/calibration");
        let body = json!({
            "alpha_ms_per_token": alpha, "beta_ms": 7.0, "gamma_ms_per_token2": 0.0,
            "measured_at_unix_s": 1_800_000_000, "r_squared": 0.99, "reason": "measured at noon",
        });
        let address = self.routers[router].admin_address;
        client::admin(address, "PUT", &path, &[], Some(&body)).await
    }

    fn measured(&self, router: usize) -> Option<f64> {
        let worker = &self.routers[router].parts().state.routing.fleet.workers()[0];
        worker
            .calibration()
            .map(|measured| measured.cost.alpha_ms_per_token)
    }

    async fn all_take(&self, alpha: f64) {
        for router in 0..self.routers.len() {
            until("what was measured counts", || {
                self.measured(router) == Some(alpha)
            })
            .await;
        }
    }
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_calibration_pushed_to_one_router_applies_to_all_and_to_later_ones() {
    let mut replicas = Replicas::start(2, vec![quick(); 2]).await;
    let told = replicas.push(0, 0.25).await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert_eq!(replicas.measured(0), Some(0.25), "at once");
    replicas.all_take(0.25).await;
    let told = replicas.push(1, 0.5).await;
    assert_eq!(told.status, 200, "{}", told.text());
    replicas.all_take(0.5).await;

    replicas.nats.kill();
    for router in 0..2 {
        let bus = replicas.routers[router].parts().bus.as_ref().unwrap();
        until("it knows that NATS is gone", || !bus.is_up()).await;
    }
    assert_eq!(
        replicas.push(1, 0.75).await.status,
        200,
        "it counts where it was told"
    );
    assert_eq!(
        (replicas.measured(0), replicas.measured(1)),
        (Some(0.5), Some(0.75))
    );
    replicas.nats.revive().await;
    let late = join(&replicas.engines, &replicas.nats.url(), "late").await;
    replicas.routers.push(late);
    replicas.all_take(0.75).await;

    // What takes effect is recorded a moment later.
    let adopted = within(async {
        loop {
            let audit = replicas.admin(0, "/admin/v1/audit").await.json();
            let mut adopted = audit["entries"].as_array().unwrap().clone();
            adopted.retain(|entry| entry["action"] == "workers.calibrate_adopt");
            if adopted.len() >= 2 {
                break adopted;
            }
        }
    })
    .await;
    assert_eq!(adopted.len(), 2, "{adopted:?}");
    assert_eq!(adopted[0]["why"], "measured at noon", "{adopted:?}");
    assert_eq!(adopted[0]["after"]["replica"], "router-1", "{adopted:?}");
}
