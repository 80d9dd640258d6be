//! A request in flight counts as resident on its worker for as long as it can still have an effect.

use std::time::Duration;

use policy::ids::WorkerId;
use protocol::api::Endpoint;
use proxy::admission::keys::Caller;
use proxy::path::turn::Turn;
use serde_json::json;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::{at_rest, route};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_lost_request_counts_until_its_timeout() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| {
        config.limits.first_byte_timeout = Duration::from_secs(600);
    })
    .await;
    let body = ask(&words(1, 400), json!({})).to_string();
    let parts = router.parts();
    let held = || {
        let (head, ()) = http::Request::new(()).into_parts();
        let turn = Turn::read(
            &parts.proxy,
            Endpoint::Chat,
            &Caller::anonymous(),
            &head,
            body.as_bytes(),
            parts.state.routing.clock.now(),
        )
        .unwrap();
        let found = parts
            .state
            .routing
            .knowledge
            .look_up(&turn.model, &turn.fingerprint, 1);
        (
            found.resident[0].0,
            parts.state.routing.knowledge.held(WorkerId(0)).0,
        )
    };
    assert_eq!(held(), (0, 0));
    // A client without timeouts.
    let mut client = TcpStream::connect(router.address).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    // The worker takes the request and never answers.
    let _lost = worker.next().await;
    let (resident, total) = held();
    assert!(resident > 300 && total > 300, "{resident} {total}");
    // From here on time advances only when all tasks wait for it.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(held(), (resident, total), "it may still come");
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::time::resume();
    at_rest(&router).await;
    assert_eq!(held(), (0, 0), "given up, and so is what it would have brought");
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 504");
}
