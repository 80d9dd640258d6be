//! `gpu-bench push FILE ROUTER`: sends a calibration to a running router.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::access::base_url;
use crate::calibration::Calibration;
use crate::measure;
use crate::push::{self, ToArgs};
use crate::terminal::complain;

/// Send a worker's calibration to a running router
///
/// The router restarts its learned cost of the worker from the calibration. After a restart, the router begins with
/// the file that its configuration names. Exit code 1: the router did not accept it.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example:\n  gpu-bench push gpu-0.json http://127.0.0.1:9090 --push-token-file admin.token"
)]
pub struct Args {
    /// A file that gpu-bench wrote.
    pub file: PathBuf,
    /// The router's admin port.
    #[arg(value_parser = base_url)]
    pub router: String,
    /// The worker and the credentials.
    #[command(flatten)]
    pub to: ToArgs,
}

/// Reads the file and sends it to the router. Fails if the file cannot be read, or the router does not accept it.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let calibration = Calibration::read(&args.file)?;
    let name = measure::runtime()?.block_on(push::send(&args.router, &args.to, &calibration))?;
    complain(&format!(
        "{} now uses {} for {name}",
        args.router,
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}
