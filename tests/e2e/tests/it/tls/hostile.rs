//! Certificates that have expired or are replaced under load, and peers that violate TLS.

use std::time::Instant;

use rcgen::date_time_ymd;

use super::*;

/// A certificate that expired in 2001.
fn expired(authority: &Authority) -> Paper {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2001, 1, 1);
    Paper {
        cert: params.signed_by(&key, &authority.issuer).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

#[tokio::test]
async fn a_client_with_an_expired_certificate_is_rejected() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let (_folder, fleet) = for_clients_of(&clients, &authority).await;
    let (address, old) = (fleet.address(), expired(&clients));
    for alpn in ["h2", "http/1.1"] {
        let refused = connect(address, &authority, Some(&old), alpn).await;
        assert_eq!(status(refused).await, None);
        let known = connect(address, &authority, Some(&clients.sign()), alpn).await;
        assert_eq!(status(known).await, Some(200));
    }
    assert_eq!(fleet.received(), [2]);
}

#[tokio::test]
async fn a_worker_with_an_expired_certificate_gets_no_requests() {
    let (folder, workers) = (tempfile::tempdir().unwrap(), Authority::new());
    let engine = Engine::start(quick()).await.unwrap();
    let address = in_front_of(engine.addr(), &expired(&workers), None).await;
    let ca = folder.path().join("workers.pem");
    std::fs::write(&ca, &workers.pem).unwrap();
    let mut config = configured(&[address]);
    config.workers[0].url = format!("https://{address}").parse().unwrap();
    config.tls.workers.ca = Some(ca);
    config.health.interval = Duration::from_millis(10);
    let router = Server::start(config).await.unwrap();
    let body = ask("hi", json!({})).to_string();
    let answer = tailroute_e2e::client::call(router.address, "POST", CHAT, &[], body).await;
    assert_eq!(answer.status, 503);
    assert!(!router.parts().state.routing.fleet.any_ready());
    assert_eq!(engine.stats().received, 0);
}

#[tokio::test]
async fn frequent_certificate_reloads_close_no_connection() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let fleet = Fleet::start(vec![quick()], encrypted(folder.path(), &authority)).await;
    let (parts, address) = (Arc::clone(fleet.router.parts()), fleet.address());
    let begun = Instant::now();
    let mut asked = 0;
    while begun.elapsed() < Duration::from_millis(500) || asked < 20 {
        let connecting = connect(address, &authority, None, "h2");
        let swapping = async {
            authority.sign().write(folder.path(), "router");
            tailroute::reload::reconfigure(&parts, &parts.state.config).unwrap();
        };
        let (stream, ()) = tokio::join!(connecting, swapping);
        assert_eq!(status(stream).await, Some(200));
        asked += 1;
    }
    fleet.at_rest().await;
}

/// Returns a record of a handshake message with a declared length of 16 MiB.
fn endless_hello(first: bool) -> Vec<u8> {
    let mut record = vec![22, 3, 1, 0x3f, 0xff];
    if first {
        record.extend_from_slice(&[1, 0xff, 0xff, 0xff]);
    }
    record.resize(5 + 0x3fff, 0);
    record
}

#[tokio::test]
async fn an_endless_hello_and_empty_fragments_are_rejected_at_once() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let fleet = Fleet::start(vec![quick()], encrypted(folder.path(), &authority)).await;
    // Empty fragments make no progress, and records of other types are no handshake.
    let empty = [22, 3, 1, 0, 0];
    for (first, then) in [
        (endless_hello(true), endless_hello(false)),
        (empty.to_vec(), empty.repeat(1000)),
        (vec![23, 3, 3, 0, 1, 0], vec![23, 3, 3, 0, 1, 0]),
    ] {
        let mut stream = TcpStream::connect(fleet.address()).await.unwrap();
        stream.write_all(&first).await.unwrap();
        let begun = Instant::now();
        let sent = within(async {
            let mut sent = first.len();
            while stream.write_all(&then).await.is_ok() {
                sent += then.len();
                tokio::task::yield_now().await;
            }
            sent
        })
        .await;
        assert!(sent < 8 << 20, "{sent} bytes were taken");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    assert!(fleet.metrics().await.sum("tailroute_tls_failures_total", &[]) >= 3.0);
}

#[tokio::test]
async fn a_client_that_closes_only_tls_is_closed_like_an_idle_connection() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let identity = encrypted(folder.path(), &authority);
    let fleet = Fleet::start(vec![quick()], |config| {
        identity(config);
        config.limits.header_timeout = Duration::from_millis(50);
        config.limits.client_idle_timeout = Duration::from_millis(200);
    })
    .await;
    let stream = connect(fleet.address(), &authority, None, "http/1.1")
        .await
        .unwrap();
    let (mut tcp, mut tls) = stream.into_inner();
    tls.send_close_notify();
    let mut said = Vec::new();
    tls.write_tls(&mut said).unwrap();
    tcp.write_all(&said).await.unwrap();
    let mut rest = Vec::new();
    let _ = within(tcp.read_to_end(&mut rest)).await;
    fleet.at_rest().await;
}
