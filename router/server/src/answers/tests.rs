use std::pin::pin;

use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;

use super::*;
use crate::progress::Progress;

const PATIENCE: Duration = Duration::from_secs(120);

fn request() -> OpenRequest {
    Arc::new(Progress::default()).request_began()
}

/// Returns an endless response of these frames, and a channel that reports when it was dropped.
fn answer(frames: &[&'static str], due: Option<Duration>) -> (Response<Body>, mpsc::Sender<()>) {
    let (alive, held) = mpsc::channel(1);
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| Bytes::from_static(frame.as_bytes()))
        .collect();
    let mut left = frames.into_iter();
    let stream = futures_util::stream::poll_fn(move |_| {
        let _ = &held;
        match left.next() {
            Some(frame) => Poll::Ready(Some(Ok::<_, BodyError>(Frame::data(frame)))),
            None => Poll::Pending,
        }
    });
    let mut answer = Response::new(body::streaming(StreamBody::new(stream)));
    if let Some(due) = due {
        answer.extensions_mut().insert(Due(Instant::now() + due));
    }
    (answer, alive)
}

/// Returns the time after which the response is dropped, once the client has polled this number of frames.
async fn given_up_after(frames: &[&'static str], asked: usize, due: Option<Duration>) -> Option<Duration> {
    let (answers, began) = (Arc::new(Answers::new(PATIENCE)), Instant::now());
    let (answer, alive) = answer(frames, due);
    let mut body = Arc::clone(&answers)
        .send(answer, Carrier::Plain, request())
        .into_body();
    for _ in 0..asked {
        let _ = futures_util::FutureExt::now_or_never(body.frame());
    }
    tokio::select! {
        never = answers.watch() => match never {},
        () = alive.closed() => Some(began.elapsed()),
        () = tokio::time::sleep(PATIENCE * 10) => None,
    }
}

fn seconds(after: Option<Duration>) -> Option<u64> {
    after.map(|after| after.as_millis().div_ceil(1000) as u64)
}

#[tokio::test(start_paused = true)]
async fn an_unread_response_is_dropped_after_the_idle_timeout() {
    assert_eq!(seconds(given_up_after(&["a", "b"], 1, None).await), Some(120));
}

#[tokio::test(start_paused = true)]
async fn a_response_that_waits_for_its_own_next_frame_is_kept() {
    assert_eq!(given_up_after(&["a"], 2, None).await, None);
    assert_eq!(
        given_up_after(&["a"], 2, Some(Duration::from_secs(5))).await,
        None
    );
}

#[tokio::test(start_paused = true)]
async fn an_unread_response_is_dropped_at_its_deadline() {
    assert_eq!(
        seconds(given_up_after(&["a", "b"], 1, Some(Duration::from_secs(5))).await),
        Some(5)
    );
}

#[tokio::test(start_paused = true)]
async fn a_deadline_before_the_next_check_brings_the_check_forward() {
    let answers = Arc::new(Answers::new(PATIENCE));
    let (endless, _alive) = answer(&["a"], None);
    let (urgent, alive) = answer(&["a", "b"], Some(Duration::from_secs(2)));
    let mut endless = Arc::clone(&answers)
        .send(endless, Carrier::Plain, request())
        .into_body();
    let began = Instant::now();
    let urgent = async {
        // By then the watch sleeps until the other response could be stalled.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut urgent = Arc::clone(&answers)
            .send(urgent, Carrier::Plain, request())
            .into_body();
        let _ = urgent.frame().await;
        alive.closed().await;
    };
    tokio::select! {
        never = answers.watch() => match never {},
        () = urgent => assert_eq!(seconds(Some(began.elapsed())), Some(2)),
        _ = async { while endless.frame().await.is_some() {} } => {}
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_stalled_response_closes_its_request() {
    for (frames, asked) in [(&["a", "b"][..], 1), (&["a"], 1)] {
        let (answers, progress) = (Arc::new(Answers::new(PATIENCE)), Arc::new(Progress::default()));
        let frames: Vec<_> = frames
            .iter()
            .map(|frame| Ok::<_, BodyError>(Frame::data(Bytes::from_static(frame.as_bytes()))))
            .collect();
        let answer = Response::new(body::streaming(StreamBody::new(futures_util::stream::iter(
            frames,
        ))));
        let mut body = Arc::clone(&answers)
            .send(answer, Carrier::Streams, progress.request_began())
            .into_body();
        for _ in 0..asked {
            assert!(body.frame().await.is_some());
        }
        assert!(progress.is_open());
        let watched = tokio::time::timeout(PATIENCE + LOOK, answers.watch()).await;
        assert!(watched.is_err() && !progress.is_open());
        drop(body);
        assert!(!progress.is_open(), "and it is not counted twice");
    }
}

#[tokio::test]
async fn a_body_is_dropped_at_its_end_over_http_2_and_after_the_write_over_http_1() {
    for (carrier, is_gone) in [(Carrier::Streams, true), (Carrier::Chunks, false)] {
        let (alive, held) = mpsc::channel::<()>(1);
        let frames = futures_util::stream::iter([Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"a")))]);
        let frames = futures_util::StreamExt::inspect(frames, move |_| {
            let _ = &held;
        });
        let answers = Arc::new(Answers::new(PATIENCE));
        let answer = Response::new(body::streaming(StreamBody::new(frames)));
        let mut body = Arc::clone(&answers).send(answer, carrier, request()).into_body();
        assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        assert!(body.frame().await.is_none());
        assert_eq!(alive.is_closed(), is_gone);
        assert!(body.frame().await.is_none(), "once more");
        drop(body);
        drop(answers.take_results());
        assert!(alive.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_healthy_response_is_checked_once_per_idle_timeout() {
    let answers = Arc::new(Answers::new(PATIENCE));
    let (answer, _alive) = answer(&["a"], None);
    let mut body = Arc::clone(&answers)
        .send(answer, Carrier::Plain, request())
        .into_body();
    let _ = futures_util::FutureExt::now_or_never(body.frame());
    let _ = futures_util::FutureExt::now_or_never(body.frame());
    let (mut watch, mut waker, mut looks) = (
        pin!(answers.watch()),
        tailroute_http::rare_waker::RareWaker::default(),
        0,
    );
    let task = std::task::Waker::noop();
    for _ in 0..PATIENCE.as_secs() * 5 {
        if waker.was_woken(&Context::from_waker(task)) {
            looks += 1;
            let _ = watch.as_mut().poll(&mut Context::from_waker(waker.waker()));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!((5..=7).contains(&looks), "{looks}");
}
