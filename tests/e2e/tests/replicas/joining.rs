//! A new router takes the state of another one.

use std::time::{Duration, Instant};

use tailroute_e2e::fleet::{metrics, quick};
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::wait::{until, within};

use super::{REPORTS_PER_TURN, Replicas, join};

/// Time for a new router to have the others' state. One that does not have it then is ready without it.
const WARM_WITHIN: Duration = Duration::from_secs(2);
/// The same on a busy machine.
const WARM_WITHIN_BUSY: Duration = Duration::from_secs(5);
/// Time for which a router hands the same snapshot to every router that joins, and a bit more.
const SNAPSHOT_REUSED: Duration = Duration::from_millis(1200);
/// A longer look is one of a machine that stands still.
const LONGEST_LOOK: Duration = Duration::from_millis(20);

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_new_router_finds_the_cache_of_existing_conversations() {
    let mut replicas = Replicas::start(2, vec![quick(); 4]).await;
    let mut talks: Vec<Conversation> = (0..8).map(|talk| Conversation::new(&words(talk, 200))).collect();
    for (number, talk) in talks.iter_mut().enumerate() {
        replicas
            .turn(number % 2, talk, &words(100 + number as u64, 300))
            .await;
    }
    for router in 0..2 {
        within(replicas.receives(router, REPORTS_PER_TURN * 4)).await;
    }
    // A snapshot that router-1 took at its own start is handed out again until then.
    tokio::time::sleep(SNAPSHOT_REUSED).await;
    let begun = Instant::now();
    let late = join(&replicas.engines, &replicas.nats.url(), "late").await;
    replicas.routers.push(late);
    while replicas.admin(2, "/readyz").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ready = begun.elapsed();
    let told = loop {
        let told = replicas.says_of_the_others(2).await;
        if !told["joined"].is_null() {
            break told;
        }
        assert!(
            ready >= WARM_WITHIN,
            "it was ready before it had the state: {told}"
        );
        assert!(begun.elapsed() < WARM_WITHIN_BUSY, "{told}");
    };
    assert!(begun.elapsed() < WARM_WITHIN_BUSY, "{:?}", begun.elapsed());
    assert!(told["joined"]["entries"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(told["joined"]["from"], "router-0", "the longest-lived");
    for (number, talk) in talks.iter_mut().enumerate() {
        let before = replicas.received();
        let name = format!("conversation-{number}");
        let cached = replicas
            .turn_of(&name, 2, talk, &words(200 + number as u64, 20))
            .await;
        assert!(
            cached > 300,
            "conversation {number}: {cached} cached tokens, {before:?}"
        );
    }
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_router_alone_or_without_nats_is_ready_at_once() {
    let mut replicas = Replicas::start(1, vec![quick()]).await;
    until("it does not wait", || !replicas.routers[0].parts().is_joining()).await;
    assert!(replicas.says_of_the_others(0).await["joined"].is_null());
    replicas.nats.kill();
    let late = join(&replicas.engines, &replicas.nats.url(), "late").await;
    let mut waited = Duration::ZERO;
    while late.parts().is_joining() {
        let look = Instant::now();
        tokio::time::sleep(Duration::from_millis(5)).await;
        waited += look.elapsed().min(LONGEST_LOOK);
    }
    assert!(waited < WARM_WITHIN / 2, "it waited {waited:?} too");
    assert_eq!(metrics(&late).await.sum("tailroute_bus_connected", &[]), 0.0);
}
