//! Tests of how tunnels end, with paused time.

use tokio::io::{DuplexStream, duplex};
use tokio::sync::oneshot;

use super::frames::{GOODBYE_TO_CLIENT, GOODBYE_TO_WORKER};
use super::*;

const IDLE: Duration = Duration::from_secs(60);

/// Both far ends of a tunnel, its cut signal and its result.
struct Stage {
    client: DuplexStream,
    worker: DuplexStream,
    cut: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<Result<&'static str, io::Error>>,
}

fn stage() -> Stage {
    let (client, its) = duplex(1024);
    let (worker, other) = duplex(1024);
    let (cut, when) = oneshot::channel();
    let ended = tokio::spawn(relay(its, Frames::looked_at(), other, IDLE, async {
        let _ = when.await;
    }));
    Stage {
        client,
        worker,
        cut,
        ended,
    }
}

async fn all(mut side: DuplexStream) -> Vec<u8> {
    let mut said = Vec::new();
    side.read_to_end(&mut said).await.unwrap();
    said
}

async fn reads(side: &mut DuplexStream, bytes: &[u8]) {
    let mut said = vec![0; bytes.len()];
    side.read_exact(&mut said).await.unwrap();
    assert_eq!(said, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_waits_for_the_end_of_the_frame_that_is_under_way_and_nothing_passes_after_it() {
    let mut stage = stage();
    stage.worker.write_all(b"\x81\x04ha").await.unwrap();
    reads(&mut stage.client, b"\x81\x04ha").await;
    stage.cut.send(()).unwrap();
    reads(&mut stage.worker, &GOODBYE_TO_WORKER).await;
    stage.worker.write_all(b"lf\x81\x01!").await.unwrap();
    stage.worker.shutdown().await.unwrap();
    stage.client.shutdown().await.unwrap();
    assert_eq!(all(stage.client).await, [b"lf", &GOODBYE_TO_CLIENT[..]].concat());
    assert_eq!(stage.ended.await.unwrap().unwrap(), "cut");
}

#[tokio::test(start_paused = true)]
async fn silence_is_ended_with_a_goodbye_to_both() {
    let stage = stage();
    assert_eq!(stage.ended.await.unwrap().unwrap(), "silent for too long");
    assert_eq!(all(stage.client).await, GOODBYE_TO_CLIENT);
    assert_eq!(all(stage.worker).await, GOODBYE_TO_WORKER);
}

#[tokio::test(start_paused = true)]
async fn a_side_that_has_said_goodbye_itself_says_nothing_more() {
    let mut stage = stage();
    stage.worker.write_all(&GOODBYE_TO_CLIENT).await.unwrap();
    reads(&mut stage.client, &GOODBYE_TO_CLIENT).await;
    stage.cut.send(()).unwrap();
    assert_eq!(stage.ended.await.unwrap().unwrap(), "cut");
    assert!(all(stage.client).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_does_not_end_and_a_side_that_takes_nothing_hold_nobody_up() {
    let mut stage = stage();
    stage.worker.write_all(b"\x82\x7e\xff\xff").await.unwrap();
    stage.worker.write_all(&[0; 1024]).await.unwrap();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_millis(1)).await;
    stage.cut.send(()).unwrap();
    assert_eq!(stage.ended.await.unwrap().unwrap(), "cut");
    assert!(began.elapsed() < 2 * GOODBYE);
}
