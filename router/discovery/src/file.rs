//! Workers listed in a file. The file's metadata is polled twice per second, following links (docs/discovery.md, "A
//! file"). The file is read at the start, and after a change once two polls agree, because a writer may still be
//! active. A malformed file is reported once until it changes.

use std::path::Path;
use std::time::Duration;

use config::file::Stamp;
use tailroute_http::error::with_causes;
use tracing::debug;

use crate::LOG;
use crate::source::DiscoverySource;
use crate::state::{DiscoveredWorker, DiscoveryState, Found};

const INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn run(path: &Path, state: &DiscoveryState) {
    let (mut read_as, mut seen) = (None, None);
    let mut first = true;
    loop {
        let now = stamp(path).await;
        let settled = std::mem::replace(&mut seen, now) == now;
        if first || (settled && now != read_as) {
            // After a failure the file is read again only when its metadata changes.
            read_as = now;
            read(path, state).await;
            first = false;
        } else if now.is_some() && settled {
            state.unchanged(DiscoverySource::File);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn stamp(path: &Path) -> Option<Stamp> {
    let path = path.to_owned();
    let stamp = tokio::task::spawn_blocking(move || config::file::stamp(&path)).await;
    stamp.ok().flatten()
}

async fn read(path: &Path, state: &DiscoveryState) {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || config::read_workers(&path)).await;
    let why = match read {
        Ok(Ok(workers)) => {
            debug!(target: LOG, workers = workers.len(), "read the file of workers");
            let named = |spec: config::Worker| (spec.name.clone(), DiscoveredWorker { spec, ready: true });
            let found = Found {
                workers: workers.into_iter().map(named).collect(),
                ..Found::default()
            };
            state.found(DiscoverySource::File, found);
            return;
        }
        Ok(Err(error)) => with_causes(&error),
        Err(error) => error.to_string(),
    };
    state.failed(DiscoverySource::File, &why);
}
