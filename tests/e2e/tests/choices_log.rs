//! The log of choices. It has a process of its own, because `tracing` caches for all threads whether a callsite is
//! enabled, and tests without a log would disable it.

use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::log::Log;
use tailroute_e2e::talk::{Conversation, words};

/// The log of another router did not contain choices at any level: <https://github.com/smg-project/smg/pull/2210>.
#[tokio::test]
async fn each_choice_is_logged_with_its_worker_and_terms() {
    let log = Log::default();
    // The router runs on the test's own thread.
    let _logged = tracing::subscriber::set_default(log.at("debug"));
    let fleet = Fleet::of(2).await;
    let mut talk = Conversation::new(&words(1, 400));
    for turn in 0..2 {
        let name = format!("turn-{turn}");
        let turned = fleet
            .turn(&mut talk, &[("x-request-id", &name)], &words(2 + turn, 30))
            .await;
        let text = log.text();
        let said: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("chosen") && line.contains(&name))
            .collect();
        let [line] = said[..] else {
            panic!("{said:#?} in {text}")
        };
        for part in [&turned.worker, "least_cost", "terms=", "cached"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
}
