//! A bound on the total bytes that many buffers hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reservation of bytes for one buffer. Dropping it releases the bytes.
#[derive(Debug)]
pub struct ByteReservation {
    /// Number of bytes of all reservations.
    total: Arc<AtomicUsize>,
    max: usize,
    bytes: usize,
}

impl ByteReservation {
    /// Returns an empty reservation. All reservations on `total` share the bound of `max` bytes.
    pub fn new(total: Arc<AtomicUsize>, max: usize) -> Self {
        Self { total, max, bytes: 0 }
    }

    /// Reserves `bytes` more, even beyond the bound. Returns whether the total is within the bound.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.total.fetch_add(bytes, Ordering::AcqRel) + bytes <= self.max
    }

    /// Sets the reservation to `bytes`. Returns whether the total is within the bound.
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

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reservations_share_one_bound_and_are_released_on_drop() {
        let total = Arc::new(AtomicUsize::new(0));
        let [mut one, mut other] = [(); 2].map(|()| ByteReservation::new(Arc::clone(&total), 100));
        assert!(one.grow(60) && other.resize(40));
        assert!(!other.resize(41));
        assert!(other.resize(10) && one.grow(30));
        drop(one);
        assert_eq!(total.load(Ordering::Relaxed), 10);
        drop(other);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
