//! Measures how long a future runs, without its waiting: the time within its polls.

use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

pub(super) async fn own_time<F: Future>(inner: F) -> (F::Output, Duration) {
    let mut inner = pin!(inner);
    let mut own = Duration::ZERO;
    let output = poll_fn(|cx| {
        let began = Instant::now();
        let polled = inner.as_mut().poll(cx);
        own += began.elapsed();
        polled
    })
    .await;
    (output, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_waited_for_does_not_count() {
        let began = Instant::now();
        let ((), own) = own_time(tokio::time::sleep(Duration::from_millis(50))).await;
        assert!(own < began.elapsed() / 2, "{own:?}");
    }
}
