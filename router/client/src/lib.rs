//! Programs that talk to a running router: `ctl`, `doctor` and `top` through its admin port, `drive` as its clients do.

mod bounded;
pub mod ctl;
pub mod doctor;
pub mod drive;
pub mod top;

/// Returns the milliseconds since 1970.
fn unix_ms() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64() * 1e3)
}
