//! Runs jobs on every core, with results in the order of the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use simulator::progress::Progress;

pub(super) fn map<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = jobs.iter().map(|_| None).collect::<Vec<Option<R>>>();
    let done = Mutex::new((Progress::new(jobs.len() as u64, "runs"), results));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return };
            let result = run(job);
            let mut done = done.lock();
            done.0.step();
            done.1[at] = Some(result);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(work);
        }
    });
    done.into_inner().1.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        let squares: Vec<u64> = jobs.iter().map(|job| job * job).collect();
        assert_eq!(map(&jobs, |job| job * job), squares);
    }
}
