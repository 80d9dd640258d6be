//! What lies beside the prefill of an idle worker: decoding, and tiers below the device's memory.

use clap::Parser as _;
use gpu_bench::cmd::{decode, tiers};
use policy::cost::PrefillCost;
use sim_engine::{Engine, EngineConfig};

#[derive(clap::Parser)]
struct Decode {
    #[command(flatten)]
    args: decode::Args,
}

#[derive(clap::Parser)]
struct Tiers {
    #[command(flatten)]
    args: tiers::Args,
}

fn words<'a>(engine: &'a str, more: &'a str) -> impl Iterator<Item = &'a str> {
    ["command", engine].into_iter().chain(more.split_whitespace())
}

async fn engine(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        prefill: PrefillCost::linear(0.02, 2.0),
        per_request_metrics: true,
        ..EngineConfig::default()
    };
    change(&mut config);
    Engine::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decode_step_grows_with_its_batch_and_prefills_with_what_decodes_beside_them() {
    let engine = engine(|config| {
        (config.tpot_ms, config.tpot_batch_ms) = (8.0, 2.0);
        config.decode_drag = 0.1;
    })
    .await;
    let url = engine.url();
    let args = Decode::parse_from(words(
        &url,
        "--batch 1,4,8 --context 256 --tokens 48 --repeats 1 --prefill 200",
    ))
    .args;
    // Tokens are timed here, by a clock that a busy machine delays: one of several measurements has to be right.
    let mut said = String::new();
    for _ in 0..20 {
        match decode::find(&args).await {
            Ok(found) => {
                let near = |value: f64, truth: f64, share: f64| (value / truth - 1.0).abs() < share;
                // Prefills go by the engine's clock, which nothing delays.
                let expected = [(0, 1.0), (1, 1.1), (4, 1.4), (8, 1.8)];
                let mut beside = found.beside.iter().zip(expected);
                let slowed =
                    beside.all(|(one, (batch, times))| one.batch == batch && near(one.times, times, 0.05));
                let dragged = slowed && near(found.drag, 0.1, 0.1);
                if dragged && near(found.base_ms, 8.0, 0.25) && near(found.per_sequence_ms, 2.0, 0.25) {
                    assert_eq!(
                        found.per_context_token_ms, None,
                        "one context says nothing of contexts"
                    );
                    engine.shutdown().await;
                    return;
                }
                said = format!("{found:?}");
            }
            Err(error) => said = format!("{error:#}"),
        }
    }
    unreachable!("in twenty measurements none was right: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_token_takes_from_the_hosts_memory_is_measured() {
    let engine = engine(|config| {
        config.prefill = PrefillCost::linear(0.2, 5.0);
        config.time_scale = 50.0;
        config.capacity_blocks = 512;
        config.host_blocks = 4096;
        config.host_ms_per_token = 0.02;
    })
    .await;
    let url = engine.url();
    let args = Tiers::parse_from(words(&url, "--history 2048 --repeats 3")).args;
    let found = tiers::find(&args).await.unwrap();
    let tier = &found.tiers[0];
    assert_eq!(
        (tier.name.as_str(), tier.samples, found.tiers.len()),
        ("host", 3, 1),
        "{found:?}"
    );
    assert!((tier.ms_per_token * 50.0 / 0.02 - 1.0).abs() < 0.1, "{found:?}");
    assert!(
        (found.computed_ms_per_token * 50.0 / 0.2 - 1.0).abs() < 0.1,
        "{found:?}"
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_keeps_its_tiers_to_itself_is_refused() {
    let engine = engine(|config| {
        config.time_scale = 50.0;
        config.capacity_blocks = 64;
    })
    .await;
    let url = engine.url();
    let args = Tiers::parse_from(words(&url, "--history 512 --repeats 1")).args;
    let said = format!("{:#}", tiers::find(&args).await.unwrap_err());
    assert!(said.contains("does not report the tiers"), "{said}");
    engine.shutdown().await;
}
