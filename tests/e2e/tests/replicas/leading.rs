//! Leader election, and the takeover when the leader dies.

use std::time::{Duration, Instant};

use serde_json::json;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::until;

use super::Replicas;

/// Time for another router to become leader after the leader's death, on a busy machine.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(9);

impl Replicas {
    fn leaders(&self) -> Vec<usize> {
        let leads = |router: &usize| self.routers[*router].parts().bus.as_ref().unwrap().leads();
        (0..self.routers.len()).filter(leads).collect()
    }
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn one_router_leads_and_another_takes_over_when_it_dies() {
    let mut replicas = Replicas::start(3, vec![quick()]).await;
    until("somebody leads", || !replicas.leaders().is_empty()).await;
    let leaders = replicas.leaders();
    assert_eq!(leaders.len(), 1, "{leaders:?}");
    let name = format!("router-{}", leaders[0]);
    let mut leading = 0.0;
    for router in 0..3 {
        let told = loop {
            let told = replicas.says_of_the_others(router).await;
            if !told["leader"].is_null() {
                break told;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(told["leader"], json!(name), "{told}");
        leading += replicas.metrics(router).await.sum("tailroute_bus_leader", &[]);
    }
    assert_eq!(leading, 1.0);

    // Dropping it ends its tasks without a release of the lease.
    drop(replicas.routers.remove(leaders[0]));
    let died = Instant::now();
    until("another leads", || !replicas.leaders().is_empty()).await;
    assert!(died.elapsed() < TAKEN_OVER_WITHIN, "{:?}", died.elapsed());
    assert_eq!(replicas.leaders().len(), 1);
}
