//! A log that cannot be written: closed, full, or with a stalled reader. Traffic continues, and recovered workers are
//! detected.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use tailroute_e2e::child::Child;

use crate::honest::Honest;
use crate::livez::Livez;
use crate::report::Report;
use crate::stage::{Plan, Stage};
use crate::{seconds, streams, turn};

/// A verbose level, which fills a pipe at once.
const DEBUG: &str = "[log]\nlevel = \"debug\"\n";

/// Returns the read end of a pipe that is never read, and the shell command that makes the write end standard error.
fn pipe(folder: &Path) -> (File, String) {
    let pipe = folder.join("log");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    // Opened for reading and writing, so that opening does not block.
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    (reader, format!("exec 2>'{}'", pipe.display()))
}

/// Checks traffic before and after workers are restarted. The reader, if there is one, is dropped once the router has
/// started.
async fn goes_on(scenario: &'static str, stderr: &str, reader: Option<File>) {
    let _turn = turn().await;
    let mut report = Report::new(scenario);
    let mut stage = Stage::start(Plan {
        engines: 2,
        more: DEBUG.to_owned(),
        shell: stderr.to_owned(),
        ..Plan::default()
    })
    .await;
    drop(reader);
    let at_rest = stage.sample().await;
    let livez = Livez::start(stage.admin);
    let honest = Honest::start(&stage, streams()).await;
    tokio::time::sleep(seconds()).await;
    report.honest(&honest.end().await);
    // The probes continue, whatever they log.
    for engine in &mut stage.engines {
        let (address, gap_ms) = (engine.address, 10.0);
        engine.kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        *engine = Child::engine(address, true, gap_ms).await;
    }
    stage.all_ready().await;
    let honest = Honest::start(&stage, streams()).await;
    tokio::time::sleep(seconds()).await;
    report.honest(&honest.end().await);
    report.livez(&livez.end());
    let after = stage.settled(at_rest).await;
    report.held(&stage, at_rest, after);
    report.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_standard_error_traffic_goes_on() {
    goes_on("standard error is closed", "exec 2>&-", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_disk_traffic_goes_on() {
    goes_on("the log's disk is full", "exec 2>/dev/full", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_log_reader_that_is_gone_traffic_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, stderr) = pipe(folder.path());
    goes_on("the log's reader is gone", &stderr, Some(reader)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_log_reader_that_stalls_traffic_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, stderr) = pipe(folder.path());
    goes_on("the log's reader stalls", &stderr, None).await;
}
