//! Finds the Python package that computes, and explains what is missing. Torch's libraries are not linked: they take
//! gigabytes, are tied to one driver version, and only `gpu` and `serve` need them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

const NEEDED: [&str; 5] = ["tailroute_torch", "torch", "numpy", "starlette", "uvicorn"];

/// A program that prints which of the given modules are missing.
const MISSING: &str =
    "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])";

/// Options of all commands that compute on this machine.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// Python that has the package tailroute_torch; by default the environment that scripts/gpu-bench makes, then
    /// python3.
    #[arg(long, value_name = "PATH", env = "GPU_BENCH_PYTHON")]
    pub python: Option<PathBuf>,
    /// Shape of the transformer; its weights are random.
    #[arg(long, default_value = "tiny", value_parser = ["tiny", "vicuna-7b", "llama-3-8b", "qwen2-7b"])]
    pub shape: String,
    /// Device: auto, cpu, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Number type; auto: bf16, or fp32 on a processor that is faster with it.
    #[arg(long, default_value = "auto", value_parser = ["auto", "bf16", "fp32"])]
    pub dtype: String,
    /// Keep only this many of the shape's layers, if memory is too small for all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub layers: Option<u32>,
    /// Tokens per cache block.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub block_tokens: u32,
    /// Processor threads; by default the number of cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

impl ModelArgs {
    /// Returns the interpreter, after checking its modules. Fails if some are missing, and says how to install them.
    pub fn interpreter(&self) -> anyhow::Result<PathBuf> {
        let python = self.python.clone().unwrap_or_else(|| {
            let made = made(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"));
            made.filter(|path| path.exists())
                .unwrap_or_else(|| PathBuf::from("python3"))
        });
        let missing = missing(&python)?;
        ensure!(
            missing.is_empty(),
            "{} has no {missing}: `scripts/gpu-bench env` creates an environment that is found automatically (6.5 \
             GB), or run `pip install ./gpu-bench/python` in your own and pass it with --python",
            python.display()
        );
        Ok(python)
    }

    /// Returns `-m tailroute_torch COMMAND` with the options of the model.
    pub fn arguments(&self, command: &str) -> Vec<OsString> {
        let block_tokens = self.block_tokens.to_string();
        let mut all: Vec<OsString> = ["-m", "tailroute_torch", command].map(OsString::from).into();
        let given = [
            ("--shape", self.shape.as_str()),
            ("--device", &self.device),
            ("--dtype", &self.dtype),
            ("--block-tokens", &block_tokens),
        ];
        for (name, value) in given {
            option(&mut all, name, value);
        }
        for (name, value) in [("--layers", self.layers), ("--threads", self.threads)] {
            if let Some(value) = value {
                option(&mut all, name, value.to_string());
            }
        }
        all
    }
}

/// Appends `--name value`.
pub fn option(arguments: &mut Vec<OsString>, name: &str, value: impl AsRef<OsStr>) {
    arguments.push(name.into());
    arguments.push(value.as_ref().to_owned());
}

/// Returns the interpreter of the environment that `scripts/gpu-bench` creates, which may not exist. `None` without a
/// folder for caches.
fn made(cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let cache = cache
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&home?).join(".cache")))?;
    Some(cache.join("tailroute/gpu-bench/bin/python"))
}

fn missing(python: &Path) -> anyhow::Result<String> {
    let asked = Command::new(python)
        .args(["-c", MISSING])
        .args(NEEDED)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| {
            format!(
                "{}: cannot be started; pass a Python 3.11 or newer with --python",
                python.display()
            )
        })?;
    ensure!(
        asked.status.success(),
        "{} is not a usable Python ({}); choose another one with --python",
        python.display(),
        asked.status
    );
    Ok(String::from_utf8_lossy(&asked.stdout)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(", "))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: ModelArgs,
    }

    #[test]
    fn model_options_are_passed_to_the_package() {
        let cli = Cli::parse_from(["x", "--shape", "qwen2-7b", "--layers", "2", "--device", "cuda:1"]);
        let said = cli.args.arguments("measure").join(OsStr::new(" "));
        assert_eq!(
            said,
            "-m tailroute_torch measure --shape qwen2-7b --device cuda:1 --dtype auto --block-tokens 16 --layers 2"
        );
    }

    #[test]
    fn the_default_environment_is_the_one_the_script_creates() {
        let path = |path: &str| Some(OsString::from(path));
        let of_home = made(None, path("/home/a")).unwrap();
        assert_eq!(
            of_home,
            Path::new("/home/a/.cache/tailroute/gpu-bench/bin/python")
        );
        assert_eq!(made(path(""), path("/home/a")).unwrap(), of_home);
        assert_eq!(
            made(path("/cache"), None).unwrap(),
            Path::new("/cache/tailroute/gpu-bench/bin/python")
        );
        assert_eq!(made(None, None), None);
    }
}
