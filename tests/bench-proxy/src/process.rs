//! Processes pinned to a processor: starting, measuring and ending them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Time for a process to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// The assignment of processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    /// The measured contender.
    pub proxy: usize,
    /// The load and the engines.
    pub load: usize,
}

impl Cores {
    /// Returns the first two processors that this process may use; both the same if there is only one.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(Pid::this())?;
        let mut free = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false));
        let proxy = free.next().context("no processor")?;
        Ok(Self {
            proxy,
            load: free.next().unwrap_or(proxy),
        })
    }
}

/// Pins this process, and the ones it starts from now on, to one processor.
pub(crate) fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::this(), &set)?)
}

/// A process and its descendants, ended on drop.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts `command` on `core` with its output in `log`. This process, which has one thread, then moves to `back`.
    pub(crate) fn start(mut command: Command, log: &Path, core: usize, back: usize) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| log.display().to_string())?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        pin(core)?;
        let child = command.spawn();
        pin(back)?;
        let name = command.get_program().display().to_string();
        child.map(Self).with_context(|| format!("cannot start {name}"))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Returns its process id and those of its descendants.
    fn tree(&self) -> BTreeSet<i32> {
        let parents: Vec<(i32, i32)> = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
                // The name before it, in brackets, may contain any character.
                let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
                Some((pid, parent.parse().ok()?))
            })
            .collect();
        let mut tree = BTreeSet::from([self.0.id() as i32]);
        loop {
            let more: Vec<i32> = parents
                .iter()
                .filter(|(pid, parent)| tree.contains(parent) && !tree.contains(pid))
                .map(|&(pid, _)| pid)
                .collect();
            if more.is_empty() {
                return tree;
            }
            tree.extend(more);
        }
    }

    /// Returns the processor time used so far, in nanoseconds; /proc/PID/stat only has ticks.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for pid in self.tree() {
            let clock = clock_getcpuclockid(Pid::from_raw(pid));
            if let Ok(time) = clock.and_then(clock_gettime) {
                sum += Duration::from(time);
            }
        }
        anyhow::ensure!(!sum.is_zero(), "the process is gone");
        Ok(sum)
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let of = |pid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.tree().into_iter().filter_map(of).sum::<u64>() * 1024
    }
}

impl Drop for Process {
    #[expect(clippy::disallowed_methods, reason = "the one thread has nothing else to do")]
    fn drop(&mut self) {
        let tree = self.tree();
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let until = std::time::Instant::now() + PATIENCE;
        while !self.has_ended() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        for pid in tree {
            // Only processes that still exist and are ours: the id of a child is not reused before it is waited for.
            if pid != self.0.id() as i32 || !self.has_ended() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let _ = self.0.wait();
    }
}
