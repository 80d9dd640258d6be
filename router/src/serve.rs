//! The running server: the data port, the admin port, and a graceful shutdown.

mod accept;
mod checked;
pub(crate) mod client_io;
pub(crate) mod connection;
pub(crate) mod connections;
pub mod descriptors;
mod events;
mod fast_path;
mod frame_owner;
pub mod framing;
mod handover;
mod listen;
pub(crate) mod progress;
mod read_ahead;
pub(crate) mod socket;
mod stalled;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use config::Config;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use self::handover::Predecessor;
use self::listen::Listeners;
use admin::serve::AdminPort;
use crate::app::App;
use crate::supervise::{Task, until_done};

/// Polling interval of a drain.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// Longest wait for a ready worker before the predecessor process is told to drain.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Time for cut requests to end.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// Time to send the last traces.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// The phase of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// No shutdown.
    Serving,
    /// No new connections are accepted. Open ones announce that they close, and close when idle.
    Draining,
    /// All connections announce the end where the protocol can, and close.
    Cut,
}

/// A running router.
#[derive(Debug)]
pub struct Server {
    /// Address of the data port.
    pub address: SocketAddr,
    /// Address of the admin port.
    pub admin_address: SocketAddr,
    /// Address of the endpoint picker's port, if there is one.
    pub picker_address: Option<SocketAddr>,
    app: Arc<App>,
    phase: watch::Sender<Phase>,
    data: JoinHandle<()>,
    admin: AdminPort,
    picker: Option<JoinHandle<()>>,
    tasks: JoinSet<()>,
    replaced: Arc<Notify>,
    is_replaced: AtomicBool,
}

impl Server {
    /// Binds the ports and starts serving. A port of 0 takes any free one.
    ///
    /// # Errors
    /// If a port cannot be bound.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let Listeners {
            data: listener,
            admin: admin_listener,
            picker: picker_listener,
            predecessor,
        } = listen::open(&config).await?;
        let (address, admin_address) = (listener.local_addr()?, admin_listener.local_addr()?);
        let picker_address = picker_listener
            .as_ref()
            .map(TcpListener::local_addr)
            .transpose()?;
        let own = [Some(&listener), Some(&admin_listener), picker_listener.as_ref()];
        let shared = own
            .into_iter()
            .flatten()
            .map(|socket| socket.as_fd().try_clone_to_owned());
        let shared: io::Result<Vec<OwnedFd>> = shared.collect();
        let handover = config.server.handover.clone();
        let app = App::new(config)?;
        let mut tasks = upkeep::spawn(&app);
        let (phase, phases) = watch::channel(Phase::Serving);
        let picking = picker_listener.zip(app.config.endpoint_picker.clone());
        let picker = picking.map(|(listener, settings)| {
            let run = picker::serve::run(Arc::clone(&app), settings, listener, phases.clone());
            tokio::spawn(run)
        });
        let data = tokio::spawn(accept::run(Arc::clone(&app), listener, phases));
        let admin = AdminPort::start(Arc::clone(&app), admin_listener)?;
        let replaced = Arc::new(Notify::new());
        if let (Some(path), Ok(sockets)) = (handover, shared) {
            tasks.spawn(succeed(
                Arc::clone(&app),
                predecessor,
                (path, sockets),
                Arc::clone(&replaced),
            ));
        }
        let picks_at = picker_address.map(tracing::field::display);
        info!(%address, %admin_address, picker_address = picks_at, workers = app.fleet.workers().len(), "serving");
        Ok(Self {
            address,
            admin_address,
            picker_address,
            app,
            phase,
            data,
            admin,
            picker,
            tasks,
            replaced,
            is_replaced: AtomicBool::new(false),
        })
    }

    /// Waits until another process has taken over the ports. Pends forever without a handover socket.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
        self.is_replaced.store(true, Ordering::Release);
        // From now on the new process serves the admin port too.
        self.admin.stop();
    }

    /// Returns the shared state, for tests and for programs that embed the router.
    #[must_use]
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Waits until every worker is ready, or until `limit` has passed. Returns whether any worker is ready.
    pub async fn wait_ready(&self, limit: Duration) -> bool {
        let all_ready = async {
            while !self.app.fleet.workers().iter().all(|worker| worker.is_ready()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, all_ready).await;
        self.app.fleet.any_ready()
    }

    /// Becomes unready, waits for the drain delay, stops accepting connections, lets requests in flight finish, and
    /// cuts the remaining ones at the drain limit. Returns the number of cut requests.
    pub async fn drain(self) -> usize {
        self.app.start_draining();
        self.be_forgotten().await;
        let limit = self.app.live().limits.drain_timeout;
        info!(
            in_flight = self.app.in_flight(),
            limit_s = limit.as_secs_f64(),
            "draining"
        );
        self.phase.send_replace(Phase::Draining);
        let ended = async {
            // After this, only connections hold receivers of the phase.
            let _ = self.data.await;
            if let Some(picker) = self.picker {
                let _ = picker.await;
            }
            self.phase.closed().await;
            // A connection may end before the last of its requests is released.
            nothing_in_flight(&self.app).await;
        };
        let in_time = tokio::time::timeout(limit, ended).await.is_ok();
        let cut = if in_time { 0 } else { self.app.in_flight() };
        if !in_time {
            warn!(cut, "drain limit reached");
            self.app.cut_off();
            self.phase.send_replace(Phase::Cut);
            let _ = tokio::time::timeout(CUT_LIMIT, nothing_in_flight(&self.app)).await;
        }
        self.admin.stop();
        if let Some(traces) = &self.app.traces {
            traces.flush(FLUSH_LIMIT).await;
        }
        drop(self.tasks);
        if let Some(capture) = &self.app.capture {
            capture.flush().await;
        }
        if let Some(snapshot) = &self.app.config.index.snapshot {
            crate::snapshot::save(&self.app, snapshot).await;
        }
        info!(cut, "stopped");
        cut
    }

    /// Keeps serving for the drain delay, because load balancers may still send connections to this address and must
    /// not see them refused. Responses already close their connections. Not needed if another process has the port.
    async fn be_forgotten(&self) {
        let delay = self.app.live().limits.drain_delay;
        if delay.is_zero() || self.is_replaced.load(Ordering::Acquire) {
            return;
        }
        info!(
            delay_s = delay.as_secs_f64(),
            "draining; still accepting connections"
        );
        tokio::time::sleep(delay).await;
    }
}

async fn nothing_in_flight(app: &App) {
    while app.in_flight() > 0 {
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

/// Tells the predecessor to drain as soon as this process can serve, then waits for a successor.
async fn succeed(
    app: Arc<App>,
    predecessor: Option<Predecessor>,
    (path, sockets): (PathBuf, Vec<OwnedFd>),
    replaced: Arc<Notify>,
) {
    if let Some(predecessor) = predecessor {
        let some_ready = async {
            while !app.fleet.any_ready() || app.is_joining() {
                tokio::time::sleep(DRAIN_STEP).await;
            }
        };
        let _ = tokio::time::timeout(READY_LIMIT, some_ready).await;
        predecessor.relieve().await;
    }
    let offering = || handover::offer(&path, &sockets);
    until_done(app, Task::only("handover"), offering).await;
    replaced.notify_one();
}
