//! The endpoint picker as gateways see it: the endpoints named, the responses to clients, and the accounting.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod account;
mod carried;
mod gateway;
mod hostile;
mod limits;
mod named;
mod refused;
mod setup;

use config::{Config, EndpointPicker};
use sim_engine::EngineConfig;
use tailroute_e2e::fleet::Fleet;

use gateway::Gateway;

/// A router with a picker port. Learning of costs is off: engines with scaled time would soon appear equally fast
/// with and without a cache.
fn with_picker(config: &mut Config) {
    config.learning.costs = false;
    config.endpoint_picker = Some(EndpointPicker {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: false,
        fallbacks: 2,
        max_connections: 16,
        max_streams: 64,
    });
}

async fn start(engines: Vec<EngineConfig>, tweak: impl FnOnce(&mut Config)) -> (Fleet, Gateway) {
    let fleet = Fleet::start(engines, |config| {
        with_picker(config);
        tweak(config);
    })
    .await;
    let gateway = Gateway::connect(fleet.router.picker_address.unwrap());
    (fleet, gateway)
}
