//! Ctrl-C ends a measurement, and loses nothing of it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gpu_bench::calibration::{Calibration, Ended};
use gpu_bench::record;
use policy::cost::PrefillCost;
use sim_engine::{Engine, EngineConfig, Jitter};

/// Samples after which it is interrupted: more than a fit needs.
const ENOUGH: usize = 40;

/// Measures for as long as it is let: nothing is ever as precise as this.
fn endless(url: &str, out: &Path, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gpu-bench"))
        .args(["worker", url, "--history", "0,1024", "--uncached", "64,256,1024"])
        .args(["--max-repeats", "1000", "--precision", "0.000000001"])
        .args(["--out", out.to_str().unwrap()])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn samples(part: &Path) -> usize {
    fs::read_to_string(part).map_or(0, |text| text.lines().count().saturating_sub(1))
}

/// Interrupts it, as a terminal does, once so many samples are there.
async fn interrupted(mut child: Child, part: &Path, count: usize) -> Output {
    let until = Instant::now() + Duration::from_secs(60);
    while samples(part) < count {
        let alive = child.try_wait().unwrap().is_none();
        assert!(alive, "it ended by itself: {:?}", child.wait_with_output());
        assert!(Instant::now() < until, "{} samples", samples(part));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_measured_until_then_is_kept_and_fitted_beside_an_older_whole_file_and_goes_on() {
    let engine = Engine::start(EngineConfig {
        prefill: PrefillCost::linear(0.08, 15.0),
        tpot_ms: 0.5,
        time_scale: 200.0,
        per_request_metrics: true,
        jitter: Jitter {
            share: 0.1,
            ..Jitter::default()
        },
        ..EngineConfig::default()
    })
    .await
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("engine.json");
    fs::write(&out, "an older one").unwrap();
    let (_, part) = record::paths(&out);

    let done = interrupted(endless(&engine.url(), &out, &[]), &part, ENOUGH).await;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("not complete") && said.contains("--resume continues"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&out).unwrap(), "an older one");
    let first = record::read(&part).unwrap().1.len();
    assert!(first >= ENOUGH);
    let partial = Calibration::read(&folder.path().join("engine.partial.json")).unwrap();
    assert_eq!((partial.ended, partial.fit.samples), (Ended::Interrupted, first));
    assert!(
        (partial.fit.cost.alpha_ms_per_token * 200.0 / 0.08 - 1.0).abs() < 0.2,
        "{:?}",
        partial.fit.cost
    );

    // The same command again would lose them; with --resume it goes on.
    let again = endless(&engine.url(), &out, &[]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert_eq!(again.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("holds {first} samples")), "{said}");
    let done = interrupted(endless(&engine.url(), &out, &["--resume"]), &part, first + 6).await;
    assert_eq!(done.status.code(), Some(1));
    assert!(record::read(&part).unwrap().1.len() >= first + 6);
    engine.shutdown().await;
}
