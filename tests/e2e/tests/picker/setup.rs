//! The picker's port: TLS, bounds, and a graceful shutdown.

use serde_json::json;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::{until, within};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::gateway::Gateway;
use crate::start;

#[tokio::test]
async fn a_drain_waits_for_requests_carried_by_gateways() {
    let (fleet, gateway) = start(vec![quick()], |_| {}).await;
    let (stream, named) = gateway.name(&ask("hi", json!({ "stream": true })), None).await;
    let port = fleet.router.picker_address.unwrap();
    let parts = fleet.router.parts().clone();
    let draining = tokio::spawn(fleet.router.drain());
    within(async {
        while TcpStream::connect(port).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(parts.proxy.in_flight(), 1);
    let endpoint = named.endpoints[0];
    let carried = stream.carry(named, endpoint, None).await;
    assert_eq!(carried.status, 200);
    assert_eq!(within(draining).await.unwrap(), 0, "none was cut");
}

#[tokio::test]
async fn streams_beyond_the_limit_of_a_connection_wait_in_the_gateway() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.endpoint_picker.as_mut().unwrap().max_streams = 2;
    })
    .await;
    let body = ask("hi", json!({}));
    let (first, _) = gateway.name(&body, None).await;
    let (_second, _) = gateway.name(&body, None).await;
    let third = {
        let (gateway, body) = (gateway.clone(), body.clone());
        tokio::spawn(async move { gateway.name(&body, None).await })
    };
    let parts = fleet.router.parts();
    assert_eq!(parts.proxy.in_flight(), 2);
    drop(first);
    let _third = within(third).await.unwrap();
    until("only two are open", || parts.proxy.in_flight() == 2).await;
}

#[tokio::test]
async fn a_silent_connection_times_out() {
    let (fleet, _) = start(vec![quick()], |config| {
        config.endpoint_picker.as_mut().unwrap().max_connections = 1;
        config.limits.header_timeout = std::time::Duration::from_millis(50);
    })
    .await;
    let port = fleet.router.picker_address.unwrap();
    let mut silent = TcpStream::connect(port).await.unwrap();
    let (_stream, _) = Gateway::connect(port).name(&ask("hi", json!({})), None).await;
    assert_eq!(within(silent.read(&mut [0; 8])).await.unwrap(), 0);
    until("the gateway is served", || {
        fleet.router.parts().proxy.in_flight() == 1
    })
    .await;
}
