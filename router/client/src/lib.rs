//! Programs that talk to a running router: `ctl`, `doctor` and `top` through its admin port, `drive` as its clients do.

pub mod ctl;
pub mod doctor;
pub mod drive;
pub mod top;
