//! The running server: the data port, the admin port, and an orderly end.

mod accept;
mod admin;
mod client_io;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use config::Config;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use crate::app::App;

/// How often a drain looks whether everything has ended.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// Time for what is cut to be gone.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// How far the server is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Not at all.
    Serving,
    /// No new connections; those that are open end with what they have begun.
    Draining,
    /// Every connection says so, where it can, and ends where it is.
    Cut,
}

/// A router that is serving.
#[derive(Debug)]
pub struct Server {
    /// Address of the data port.
    pub address: SocketAddr,
    /// Address of the admin port.
    pub admin_address: SocketAddr,
    app: Arc<App>,
    phase: watch::Sender<Phase>,
    data: JoinHandle<GracefulShutdown>,
    admin: JoinHandle<()>,
    tasks: JoinSet<()>,
}

impl Server {
    /// Binds both ports and starts to serve. A port of 0 takes any free one.
    ///
    /// # Errors
    /// If a port cannot be bound.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let listener = bind(config.server.listen, "server.listen").await?;
        let admin_listener = bind(config.admin.listen, "admin.listen").await?;
        let (address, admin_address) = (listener.local_addr()?, admin_listener.local_addr()?);
        let app = App::new(config)?;
        let tasks = crate::upkeep::spawn(&app);
        let (phase, phases) = watch::channel(Phase::Serving);
        let data = tokio::spawn(accept::run(Arc::clone(&app), listener, phases));
        let admin = tokio::spawn(admin::run(Arc::clone(&app), admin_listener));
        info!(%address, %admin_address, workers = app.fleet.workers().len(), "serving");
        Ok(Self {
            address,
            admin_address,
            app,
            phase,
            data,
            admin,
            tasks,
        })
    }

    /// What the requests share: for tests and for programs that embed the router.
    #[must_use]
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Waits until some worker is ready, or the time is up. Returns whether one is.
    pub async fn wait_ready(&self, limit: Duration) -> bool {
        let all_ready = async {
            while !self.app.fleet.workers().iter().all(|worker| worker.is_ready()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, all_ready).await;
        self.app.fleet.any_ready()
    }

    /// Takes no new connections, lets requests in flight end, and cuts what is left at the drain limit. Returns how
    /// many requests were cut.
    pub async fn drain(self) -> usize {
        self.app.start_draining();
        let limit = self.app.config.limits.drain_timeout;
        info!(
            in_flight = self.app.in_flight(),
            limit_s = limit.as_secs_f64(),
            "draining"
        );
        self.phase.send_replace(Phase::Draining);
        let ended = async {
            if let Ok(connections) = self.data.await {
                connections.shutdown().await;
            }
            // A connection may be gone before the last of what it held is.
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
        self.admin.abort();
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
}

async fn nothing_in_flight(app: &App) {
    while app.in_flight() > 0 {
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({key})"))
}
