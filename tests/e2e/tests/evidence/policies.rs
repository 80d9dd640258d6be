//! Mirrors of workers with other eviction policies: predicted against reported cached tokens, without events and hints.

use config::{CachePolicy as Written, KvEvents};
use policy::cache::Order;
use policy::units::Tokens;
use sim_engine::{CachePolicy, Dialect, EngineConfig, EventStyle, KvEventsConfig};
use tailroute_e2e::fleet::{Fleet, quick};

use crate::agreement;
use crate::agreement::{CAPACITY_BLOCKS, talk_and};

/// Starts an engine with this policy, reported by `GET /server_info`, and a router with the policy `written` in its
/// configuration. A single engine makes runs independent of the machine's speed.
async fn fleet(policy: CachePolicy, written: Written) -> Fleet {
    let engine = EngineConfig {
        cache_policy: policy,
        capacity_blocks: CAPACITY_BLOCKS,
        dialect: Dialect::None,
        kv_events: Some(KvEventsConfig {
            style: EventStyle::Sglang,
            ..KvEventsConfig::default()
        }),
        ..quick()
    };
    Fleet::start(vec![engine], |config| {
        for worker in &mut config.workers {
            worker.capacity = Tokens(CAPACITY_BLOCKS * u64::from(worker.block_size));
            worker.kv_events = KvEvents::Off;
            worker.cache_policy = written;
        }
    })
    .await
}

/// Returns the share of exact predictions, and the mean error of predictions in tokens.
async fn agreement_of(policy: CachePolicy, written: Written) -> (f64, f64) {
    let fleet = fleet(policy, written).await;
    let page = talk_and(&fleet, 1, false).await;
    let error = |what| page.sum(&format!("tailroute_cached_tokens_error_{what}"), &[]);
    let (exact, off) = (agreement(&page).0, error("sum") / error("count"));
    eprintln!("{policy:?} mirrored as {written:?}: {exact:.3} exact, {off:.1} tokens off");
    (exact, off)
}

#[tokio::test]
async fn a_mirror_uses_the_eviction_policy_its_worker_reports() {
    let t_lru = CachePolicy::TLru {
        xi_tokens: 700,
        next_prompt_tokens: 100,
    };
    let orders = Order::ALL.map(CachePolicy::Plain);
    for policy in orders.into_iter().chain([t_lru]) {
        let (exact, off) = agreement_of(policy, Written::Auto).await;
        assert!(
            exact >= 0.75 && off <= 16.0,
            "{policy:?}: {exact} exact, {off} tokens off"
        );
    }
}

#[tokio::test]
async fn a_mirror_uses_the_configured_policy_and_a_wrong_one_predicts_worse() {
    for (order, written) in [(Order::Mru, Written::Mru), (Order::Lfu, Written::Lfu)] {
        let policy = CachePolicy::Plain(order);
        let right = agreement_of(policy, written).await;
        let wrong = agreement_of(policy, Written::Lru).await;
        assert!(
            right.0 > wrong.0 + 0.1 && right.1 < wrong.1 / 2.0,
            "{order:?}: {right:?}, {wrong:?} as lru"
        );
    }
}
