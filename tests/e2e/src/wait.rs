//! Waiting for something to be so: as long as it takes, and no longer than a test may hang.

use std::time::Duration;

/// A test that waits longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at a condition that nothing announces.
const LOOK: Duration = Duration::from_millis(1);

/// The result of `work`, which must come in time.
///
/// # Panics
/// If it does not.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .expect("the test hangs")
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not come to hold in time; `what` says what was waited for.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(LOOK).await;
        }
    });
    assert!(waited.await.is_ok(), "never came to be: {what}");
}
