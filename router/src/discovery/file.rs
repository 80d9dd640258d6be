//! Workers that a file lists.
//!
//! The file is looked at twice a second and compared by what the file system says of it, links followed: a mounted ConfigMap
//! is a link that is swapped, and notifications do not tell of that on every file system. It is read when it looks the same
//! twice, since whoever writes it may not be done. One that is wrong is told of once, and again when it has changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::board::{Found, Named};
use crate::app::App;
use crate::reload;
use fleet::source::Source;

/// Between two looks at the file.
const LOOK: Duration = Duration::from_millis(500);

/// Keeps what the file says on the board, for as long as the task lives.
pub(super) async fn keep(app: Arc<App>, path: PathBuf) {
    let (mut read_as, mut seen) = (None, None);
    let mut first = true;
    loop {
        let now = reload::look_at(vec![path.clone()]).await.pop().flatten();
        let settled = std::mem::replace(&mut seen, now) == now;
        if first || (settled && now != read_as) {
            // One that failed to be read is not read again until it looks different, but for one that is not there.
            read_as = now;
            read(&app, &path).await;
            first = false;
        } else if now.is_some() && settled {
            app.discovery.unchanged(Source::File);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn read(app: &App, path: &std::path::Path) {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || config::read_workers(&path)).await;
    let why = match read {
        Ok(Ok(workers)) => {
            debug!(workers = workers.len(), "the file of workers was read");
            let named = |spec: config::Worker| (spec.name.clone(), Named { spec, ready: true });
            let found = Found {
                workers: workers.into_iter().map(named).collect(),
                ..Found::default()
            };
            app.discovery.found(Source::File, found);
            return;
        }
        Ok(Err(error)) => reload::chain(&error),
        Err(error) => error.to_string(),
    };
    app.discovery.failed(Source::File, &why);
    app.metrics.discovery_failed(Source::File);
}
