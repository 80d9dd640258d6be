//! `tailroute serve`: the router.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use config::{Config, Overrides};
use telemetry::logs;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::budget;
use crate::reload::{self, Source};
use crate::serve::{Server, descriptors};
use crate::supervise::{Task, forever};

/// For tasks and threads to end after the drain.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
/// For the log's last lines to be written.
const LOG_LIMIT: Duration = Duration::from_secs(1);

/// Serve: route requests to workers.
///
/// Example: tailroute serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML); see `tailroute check` and config/tailroute.example.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the data port.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address of the admin port.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// URL of a worker; may be repeated. Replaces the workers of the file.
    #[arg(long = "worker", value_name = "URL")]
    workers: Vec<String>,
    /// Routing policy: tail, or another for comparison; a wrong name lists them all.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

/// Runs the router until it is told to stop (SIGTERM or SIGINT), or another process has taken over, then drains. SIGHUP
/// makes it read its configuration again.
///
/// # Errors
/// If the configuration is wrong or a port cannot be bound.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let overrides = Overrides {
        listen: args.listen,
        admin: args.admin,
        workers: args.workers,
        policy: args.policy,
    };
    let source = Source {
        file: args.config,
        environment: super::environment(),
        overrides,
    };
    let mut config = source.load()?;
    logs::start(&config.log)?;
    descriptors::fit(&mut config);
    budget::report(&config);
    let runtime = runtime().context("no runtime")?;
    let ended = runtime.block_on(serve(config, source));
    // What still blocks, on a file system that hangs or otherwise, holds nothing that is worth waiting for.
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    logs::writer::flush(LOG_LIMIT);
    ended
}

/// As many threads as there are processors for it. With a single one, as a sidecar is often given, there is nobody to hand
/// work over to: a runtime of one thread spares what that would take.
fn runtime() -> io::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
    let mut builder = if processors == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder.enable_all().build()
}

async fn serve(config: Config, source: Source) -> anyhow::Result<ExitCode> {
    // Handled and then ignored: a write beyond RLIMIT_FSIZE fails, as one to a full disk does, instead of ending the process.
    let _beyond_limit = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = Server::start(config).await?;
    let asked = Arc::new(Notify::new());
    let (app, again) = (Arc::clone(server.app()), Arc::clone(&asked));
    let watch = move || reload::watch(Arc::clone(&app), source.clone(), Arc::clone(&again));
    let reloading = tokio::spawn(forever(Arc::clone(server.app()), Task::only("reload"), watch));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = server.replaced() => break,
            _ = hang_up.recv() => asked.notify_one(),
        }
    }
    reloading.abort();
    // A second signal means: now.
    tokio::select! {
        cut = server.drain() => Ok(if cut == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        _ = terminate.recv() => Ok(ExitCode::FAILURE),
        _ = interrupt.recv() => Ok(ExitCode::FAILURE),
    }
}
