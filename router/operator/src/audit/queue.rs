//! Lines on their way to a file, in order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

type WriteOutcome = Arc<OnceLock<Result<(), io::Error>>>;

/// Lines that wait to be written. Each caller of [`Queue::add`] waits for its line, so there are as many as callers.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<VecDeque<(Vec<u8>, WriteOutcome)>>);

/// Handle of a line that was queued, which has its outcome once the line is written.
#[derive(Clone, Debug)]
pub(super) struct Queued(WriteOutcome);

impl Queue {
    pub(super) fn add(&self, line: String) -> Queued {
        let outcome = WriteOutcome::default();
        self.0.lock().push_back((line.into_bytes(), Arc::clone(&outcome)));
        Queued(outcome)
    }

    /// Passes lines to `write`, first to last, until this one is written. Only one thread may do so at a time.
    pub(super) fn drain(&self, through: &Queued, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
        while through.0.get().is_none() {
            // A statement of its own, so that lines can be added while one is written.
            let next = self.0.lock().pop_front();
            let Some((line, outcome)) = next else { return };
            let _ = outcome.set(write(&line));
        }
    }

    /// Removes a line that was not written in time.
    pub(super) fn give_up(&self, queued: &Queued) {
        self.0
            .lock()
            .retain(|(_, outcome)| !Arc::ptr_eq(outcome, &queued.0));
    }
}

impl Queued {
    /// Fails if the line was not written, or its write failed.
    pub(super) fn outcome(&self) -> io::Result<()> {
        match self.0.get() {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Err(io::Error::other("the line was not written")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_in_order_and_each_caller_gets_its_own_outcome() {
        let queue = Queue::default();
        let lines = ["a", "b", "c", "d", "e"].map(|line| queue.add(line.to_owned()));
        queue.give_up(&lines[1]);
        let mut written = Vec::new();
        queue.drain(&lines[3], |line| {
            written.push(line.to_vec());
            match line {
                b"c" => Err(io::Error::new(io::ErrorKind::StorageFull, "full")),
                _ => Ok(()),
            }
        });
        assert_eq!(written, [b"a", b"c", b"d"]);
        let outcomes = lines.map(|line| line.outcome().map_err(|error| error.to_string()));
        let failed = |why: &str| Err(why.to_owned());
        assert_eq!(
            outcomes,
            [
                Ok(()),
                failed("the line was not written"),
                failed("full"),
                Ok(()),
                failed("the line was not written")
            ]
        );
    }
}
