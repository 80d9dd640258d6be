//! What clients have sent of requests whose answers have not begun: one bound for all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Room for the part of a request that is held. Dropping it frees the room.
#[derive(Debug)]
pub struct Unread {
    /// Bytes that are held in all.
    total: Arc<AtomicUsize>,
    max: usize,
    bytes: usize,
}

impl Unread {
    /// No room yet, of at most `max` bytes in all.
    #[must_use]
    pub fn new(total: Arc<AtomicUsize>, max: usize) -> Self {
        Self { total, max, bytes: 0 }
    }

    /// Takes room for so many more bytes. Returns whether the bound allows it.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.total.fetch_add(bytes, Ordering::AcqRel) + bytes <= self.max
    }

    /// Takes or gives back room, so that it is for so many bytes. Returns whether the bound allows it.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            return self.grow(bytes - self.bytes);
        }
        if bytes < self.bytes {
            self.total.fetch_sub(self.bytes - bytes, Ordering::AcqRel);
            self.bytes = bytes;
        }
        true
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_held_counts_against_one_bound_and_is_given_back() {
        let total = Arc::new(AtomicUsize::new(0));
        let [mut one, mut other] = [(); 2].map(|()| Unread::new(Arc::clone(&total), 100));
        assert!(one.grow(60) && other.resize(40));
        assert!(!other.resize(41));
        assert!(other.resize(10) && one.grow(30));
        drop(one);
        assert_eq!(total.load(Ordering::Relaxed), 10);
        drop(other);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
