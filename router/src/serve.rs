//! The running server: the data port, the admin port, and a graceful shutdown.

pub mod descriptors;
mod handover;
mod listen;

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
use admin::Admin;
use admin::history::{self, History};
use admin::serve::AdminPort;
use proxy::Proxy;
use replicas::Bus;
use server::Phase;
use state::State;
use state::snapshot::{self, SavedState};
use state::supervise::{Task, until_done};
use state::turn_reports::TurnReports;

const DRAIN_STEP: Duration = Duration::from_millis(20);

/// Longest wait for a ready worker before the predecessor process is told to drain.
const READY_LIMIT: Duration = Duration::from_secs(30);

const CUT_LIMIT: Duration = Duration::from_secs(1);

const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// A running router.
#[derive(Debug)]
pub struct Server {
    /// Address of the data port.
    pub address: SocketAddr,
    /// Address of the admin port.
    pub admin_address: SocketAddr,
    /// Address of the endpoint picker's port, if there is one.
    pub picker_address: Option<SocketAddr>,
    parts: Arc<Admin>,
    phase: watch::Sender<Phase>,
    data: JoinHandle<()>,
    admin: AdminPort,
    picker: Option<JoinHandle<()>>,
    tasks: JoinSet<()>,
    replaced: Arc<Notify>,
    is_replaced: AtomicBool,
}

impl Server {
    /// Binds the ports and starts serving. A port of 0 takes any free one. Fails if a port cannot be bound.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let Listeners {
            data: listener,
            admin: admin_listener,
            picker: picker_listener,
            mut predecessor,
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
        let parts = parts(config)?;
        let (state, proxy) = (&parts.state, &parts.proxy);
        let kept = restore_early(state, predecessor.as_mut()).await;
        let mut tasks = upkeep::spawn(proxy, parts.bus.as_ref(), kept);
        history::record(&parts)?;
        let (phase, phases) = watch::channel(Phase::Serving);
        let picking = picker_listener.zip(state.config.endpoint_picker.clone());
        let picker = picking.map(|(listener, settings)| {
            let run = picker::serve::run(Arc::clone(proxy), settings, listener, phases.clone());
            tokio::spawn(run)
        });
        let data = tokio::spawn(proxy::accept::run(Arc::clone(proxy), listener, phases));
        let admin = AdminPort::start(Arc::clone(&parts), admin_listener)?;
        let replaced = Arc::new(Notify::new());
        if let (Some(path), Ok(sockets)) = (handover, shared) {
            tasks.spawn(succeed(
                Arc::clone(&parts),
                predecessor,
                path,
                sockets,
                Arc::clone(&replaced),
            ));
        }
        let picks_at = picker_address.map(tracing::field::display);
        let workers = state.routing.fleet.workers().len();
        info!(%address, %admin_address, picker_address = picks_at, workers, "serving");
        info!(url = admin::console::url(admin_address), "console");
        Ok(Self {
            address,
            admin_address,
            picker_address,
            parts,
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

    /// Returns the router's parts, for tests and for programs that embed the router.
    #[must_use]
    pub fn parts(&self) -> &Arc<Admin> {
        &self.parts
    }

    /// Waits until every worker is ready, or until `limit` has passed. Returns whether any worker is ready.
    pub async fn wait_ready(&self, limit: Duration) -> bool {
        let all_ready = async {
            while !self.parts.state.routing.fleet.are_all_ready() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, all_ready).await;
        self.parts.state.routing.fleet.any_ready()
    }

    /// Becomes unready, waits for the drain delay, stops accepting connections, lets requests in flight finish, and
    /// cuts the remaining ones at the drain limit. Returns the number of cut requests.
    pub async fn drain(self) -> usize {
        self.parts.state.operations.start_draining();
        self.be_forgotten().await;
        let limit = self.parts.state.routing.live().limits.drain_timeout;
        info!(
            in_flight = self.parts.proxy.in_flight(),
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
            nothing_in_flight(&self.parts.proxy).await;
        };
        let in_time = tokio::time::timeout(limit, ended).await.is_ok();
        let cut = if in_time { 0 } else { self.parts.proxy.in_flight() };
        if !in_time {
            warn!(cut, "drain limit reached");
            self.parts.proxy.cut_off();
            self.phase.send_replace(Phase::Cut);
            let _ = tokio::time::timeout(CUT_LIMIT, nothing_in_flight(&self.parts.proxy)).await;
        }
        self.admin.stop();
        if let Some(traces) = &self.parts.proxy.traces {
            traces.flush(FLUSH_LIMIT).await;
        }
        drop(self.tasks);
        if let Some(capture) = &self.parts.proxy.capture {
            self.parts.proxy.capture_fleet(true);
            capture.flush().await;
        }
        keep_or_name(&self.parts).await;
        info!(cut, "stopped");
        cut
    }

    /// Keeps serving for the drain delay: load balancers may still connect, unless another process has the port.
    async fn be_forgotten(&self) {
        let delay = self.parts.state.routing.live().limits.drain_delay;
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

/// Restores what an earlier process has left, as far as requests are served by it. Returns all of it.
async fn restore_early(state: &State, predecessor: Option<&mut Predecessor>) -> Option<SavedState> {
    let handed = match predecessor {
        Some(predecessor) => predecessor.state().await,
        None => None,
    };
    let kept = snapshot::find(state.config.index.snapshot.clone(), handed).await?;
    snapshot::restore_early(state, &kept).await;
    Some(kept)
}

/// Writes what the next process can use, or names what is lost. A successor has it already.
async fn keep_or_name(parts: &Arc<Admin>) {
    let state = &parts.state;
    if let Some(capture) = state.operations.operator.recent.now() {
        let (turns, _) = capture.memory.size();
        info!(
            turns,
            "captured turns end with this process: they are in its memory alone"
        );
    }
    if state.operations.is_handed_over() {
        return;
    }
    if let Some(settings) = &state.config.index.snapshot {
        snapshot::save(state, settings).await;
        history::save(parts).await;
        return;
    }
    let decided = state.decided();
    if !decided.is_empty() {
        warn!(
            what = decided.join("; "),
            "decisions end with this process: index.snapshot_path is not set"
        );
    }
}

fn parts(config: Config) -> anyhow::Result<Arc<Admin>> {
    let state = State::new(config)?;
    // Compiled into this crate alone, so that another commit does not recompile the others.
    state
        .routing
        .metrics
        .name_build(option_env!("TAILROUTE_COMMIT").unwrap_or_default());
    let fleet = state.config.fleet.as_ref();
    let bus = fleet.map(|fleet| Arc::new(Bus::new(fleet, state.routing.metrics.bus())));
    let replicas = bus.as_ref().map(|bus| Arc::clone(bus) as Arc<dyn TurnReports>);
    let proxy = Proxy::new(Arc::clone(&state), replicas)?;
    Ok(Arc::new(Admin {
        state,
        proxy,
        bus,
        history: History::default(),
    }))
}

async fn nothing_in_flight(proxy: &Proxy) {
    while proxy.in_flight() > 0 {
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

/// Tells the predecessor to drain as soon as this process can serve, then waits for a successor.
async fn succeed(
    parts: Arc<Admin>,
    predecessor: Option<Predecessor>,
    path: PathBuf,
    sockets: Vec<OwnedFd>,
    replaced: Arc<Notify>,
) {
    if let Some(predecessor) = predecessor {
        let some_ready = async {
            while !parts.state.routing.fleet.any_ready() || parts.is_joining() {
                tokio::time::sleep(DRAIN_STEP).await;
            }
        };
        let _ = tokio::time::timeout(READY_LIMIT, some_ready).await;
        predecessor.relieve().await;
    }
    let offering = || handover::offer(&parts, &path, &sockets);
    until_done(Arc::clone(&parts.state), Task::only("handover"), offering).await;
    replaced.notify_one();
}
