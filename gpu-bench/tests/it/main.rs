//! Measurements of simulated engines, refusals, interruptions, and what the router makes of a calibration.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

mod beside;
mod interrupted;
mod own_machine;
mod refusals;
mod served;
mod simulated;
