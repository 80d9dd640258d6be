//! Time in the processor's own ticks: a lookup is shorter than a call of the system's clock.

use std::iter::Sum;
use std::time::Instant;

/// What some work took: by the wall, and of processors, all threads together. On a busy machine only the second means
/// anything.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    pub wall: u64,
    pub processor: u64,
}

impl Sum for Spent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self { wall: sum.wall + one.wall, processor: sum.processor + one.processor })
    }
}

pub fn timed(work: impl FnOnce()) -> Spent {
    let (wall, processor) = (Instant::now(), processor_nanos());
    work();
    Spent { wall: wall.elapsed().as_nanos() as u64, processor: processor_nanos() - processor }
}

/// Processor time that this process has used, in nanoseconds.
fn processor_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the timespec and to nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub struct Clock {
    /// Ticks that timing nothing takes.
    pub overhead: u64,
    nanos_per_tick: f64,
}

impl Clock {
    pub fn calibrated() -> Self {
        let mut clock = Self { overhead: 0, nanos_per_tick: 1.0 };
        let (start, ticks) = (Instant::now(), clock.now());
        while start.elapsed().as_millis() < 50 {}
        clock.nanos_per_tick = start.elapsed().as_nanos() as f64 / (clock.now() - ticks) as f64;
        let mut empty: Vec<u64> = (0..10_001).map(|_| { let start = clock.now(); clock.now() - start }).collect();
        empty.sort_unstable();
        clock.overhead = empty[empty.len() / 2];
        clock
    }

    pub fn nanos(&self, ticks: u64) -> f64 {
        ticks as f64 * self.nanos_per_tick
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub fn now(&self) -> u64 {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: reading the time stamp counter and a load fence touch no memory; both exist on every x86-64.
        unsafe {
            _mm_lfence();
            let ticks = _rdtsc();
            _mm_lfence();
            ticks
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    pub fn now(&self) -> u64 {
        use std::sync::LazyLock;
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().as_nanos() as u64
    }
}
