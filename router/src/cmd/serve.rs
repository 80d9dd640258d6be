//! `tailroute serve`: runs the router.

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
use crate::reload::{self, ConfigSource};
use crate::serve::{Server, descriptors};
use state::supervise::{Task, forever};

/// Time limit for tasks and threads to end after the drain.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
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
    /// Routing policy: tail, or another for comparison; an unknown name lists them all.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

/// Runs the router until SIGTERM, SIGINT or a hand-over to another process, then drains. SIGHUP reloads the
/// configuration. Fails if the configuration is wrong or a port cannot be bound.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let overrides = Overrides {
        listen: args.listen,
        admin: args.admin,
        workers: args.workers,
        policy: args.policy,
    };
    let source = ConfigSource {
        file: args.config,
        environment: config::environment(),
        overrides,
    };
    let mut config = source.load()?;
    logs::start(&config.log)?;
    descriptors::fit(&mut config);
    budget::report(&config);
    let runtime = runtime().context("no runtime")?;
    let ended = runtime.block_on(serve(config, source));
    // What still blocks, for example on a stalled file system, need not be waited for.
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    logs::writer::flush(LOG_LIMIT);
    ended
}

/// Creates a runtime with a thread per processor. For one processor, a single-threaded runtime costs less.
fn runtime() -> io::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
    let mut builder = if processors == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder.enable_all().build()
}

async fn serve(config: Config, source: ConfigSource) -> anyhow::Result<ExitCode> {
    // With the signal handled, a write beyond RLIMIT_FSIZE fails like one to a full disk; the process goes on.
    let _beyond_limit = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = Server::start(config).await?;
    let asked = Arc::new(Notify::new());
    let (parts, again) = (Arc::clone(server.parts()), Arc::clone(&asked));
    let watch = move || reload::watch(Arc::clone(&parts), source.clone(), Arc::clone(&again));
    let reloading = tokio::spawn(forever(
        Arc::clone(&server.parts().state),
        Task::only("reload"),
        watch,
    ));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = server.replaced() => break,
            _ = hang_up.recv() => asked.notify_one(),
        }
    }
    reloading.abort();
    // A second signal ends the drain.
    tokio::select! {
        cut = server.drain() => Ok(if cut == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        _ = terminate.recv() => Ok(ExitCode::FAILURE),
        _ = interrupt.recv() => Ok(ExitCode::FAILURE),
    }
}
