use tokio::io::{DuplexStream, duplex};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::*;

const BOUND: usize = 1 << 20;

/// Returns a connection with this role, and its peer's end, after the handshake.
async fn opened(role: Role) -> (Connection<DuplexStream>, DuplexStream) {
    let (near, mut far) = duplex(1 << 16);
    let peer = if role == Role::Sub { "PUB" } else { "ROUTER" };
    let mut hello = codec::greeting().to_vec();
    codec::put_frame(&mut hello, true, false, &codec::ready(peer));
    far.write_all(&hello).await.unwrap();
    let connection = Connection::handshake(near, role, BOUND).await.unwrap();
    let mut own = codec::greeting().to_vec();
    codec::put_frame(&mut own, true, false, &codec::ready(role.name()));
    let mut said = vec![0; own.len()];
    far.read_exact(&mut said).await.unwrap();
    assert_eq!(said, own);
    (connection, far)
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        codec::put_frame(&mut bytes, false, at + 1 < frames.len(), frame);
    }
    bytes
}

#[tokio::test]
async fn messages_of_another_implementations_publisher_are_received() {
    let mut publisher = PubSocket::new();
    let endpoint = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let mut connection = Connection::connect(&endpoint, Role::Sub, BOUND).await.unwrap();
    connection.subscribe(b"kv").await.unwrap();
    let long = Bytes::from(vec![7; BOUND / 2]);
    // A subscription takes effect when the publisher has read it.
    let heard = async {
        loop {
            let other = ZmqMessage::from("other");
            let mut sent = ZmqMessage::from("kv-topic");
            sent.push_back(Bytes::new());
            sent.push_back(long.clone());
            publisher.send(other).await.unwrap();
            publisher.send(sent).await.unwrap();
            tokio::task::yield_now().await;
            if let Ok(frames) = timeout(Duration::from_millis(10), connection.recv()).await {
                break frames.unwrap();
            }
        }
    };
    let frames = timeout(Duration::from_secs(20), heard).await.unwrap();
    assert_eq!(frames, [Bytes::from("kv-topic"), Bytes::new(), long]);
}

#[tokio::test]
async fn another_implementations_router_answers_requests() {
    let mut router = RouterSocket::new();
    let endpoint = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let mut connection = Connection::connect(&endpoint, Role::Dealer, BOUND).await.unwrap();
    connection.send(&[b"", &[7; 300]]).await.unwrap();
    let mut asked = router.recv().await.unwrap().into_vec();
    assert_eq!(asked[1..], [Bytes::new(), Bytes::from(vec![7; 300])]);
    asked.truncate(1);
    asked.extend([Bytes::new(), Bytes::from("answer")]);
    router.send(ZmqMessage::try_from(asked).unwrap()).await.unwrap();
    let answer = timeout(Duration::from_secs(20), connection.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer, [Bytes::new(), Bytes::from("answer")]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_takes_too_long_ends_the_connection() {
    let (mut connection, mut far) = opened(Role::Sub).await;
    let sent = message(&[b"topic", &[7; 200]]);
    let drip = tokio::spawn(async move {
        // A message within the timeout, and one beyond it.
        for byte in [&sent[..20], &sent[..]].concat() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if far.write_all(&[byte]).await.is_err() {
                return;
            }
        }
    });
    // The read is cancelled and repeated, as beside a heartbeat.
    let began = Instant::now();
    let error = loop {
        if let Ok(read) = timeout(Duration::from_millis(700), connection.recv()).await {
            break read.unwrap_err();
        }
    };
    assert!(matches!(error, ZmtpError::Unfinished), "{error}");
    assert_eq!(error.breach(), Some("unfinished"));
    let took = began.elapsed();
    assert!(took >= WHOLE && took < WHOLE + Duration::from_secs(3), "{took:?}");
    drip.abort();
}

#[tokio::test(start_paused = true)]
async fn the_timeout_starts_with_each_message_not_with_silence() {
    let (mut connection, mut far) = opened(Role::Sub).await;
    for _ in 0..3 {
        let half = message(&[b"topic", &[7; 200]]);
        let writing = tokio::spawn(async move {
            tokio::time::sleep(WHOLE * 10).await;
            far.write_all(&half[..100]).await.unwrap();
            tokio::time::sleep(WHOLE / 2).await;
            far.write_all(&half[100..]).await.unwrap();
            far
        });
        assert_eq!(connection.recv().await.unwrap().len(), 2);
        far = writing.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handshake_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let refused = Connection::connect(&endpoint, Role::Sub, BOUND).await;
    assert!(matches!(refused, Err(ZmtpError::Opening)), "{refused:?}");
}

#[tokio::test]
async fn a_ping_is_answered_even_within_a_message_and_one_that_is_malformed_ends_the_connection() {
    let (mut connection, mut far) = opened(Role::Sub).await;
    let (head, tail) = (message(&[b"topic", b"x"]), b"x".len() + 2);
    let (head, tail) = head.split_at(head.len() - tail);
    let mut sent = head.to_vec();
    codec::put_frame(&mut sent, true, false, b"\x04PING\0\x0acontext");
    codec::put_frame(&mut sent, true, false, b"\x07UNKNOWNdata");
    sent.extend(tail);
    far.write_all(&sent).await.unwrap();
    assert_eq!(connection.recv().await.unwrap(), ["topic", "x"]);
    let mut pong = [0; 14];
    far.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"\x04\x0c\x04PONGcontext");
    let mut sent = Vec::new();
    codec::put_frame(&mut sent, true, false, &[&b"\x04PING\0\0"[..], &[7; 17]].concat());
    far.write_all(&sent).await.unwrap();
    assert!(matches!(
        connection.recv().await,
        Err(ZmtpError::Codec(CodecError::Command))
    ));
}

#[tokio::test]
async fn a_peer_that_pings_without_reading_is_disconnected() {
    let (mut connection, mut far) = opened(Role::Sub).await;
    let mut ping = Vec::new();
    codec::put_frame(&mut ping, true, false, b"\x04PING\0\0context-of-16byt");
    let pinging = tokio::spawn(async move { while far.write_all(&ping.repeat(100)).await.is_ok() {} });
    let error = timeout(Duration::from_secs(20), connection.recv())
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, ZmtpError::Unread), "{error}");
    drop(connection);
    pinging.await.unwrap();
}

#[tokio::test]
async fn closed_refused_and_incompatible_peers_are_distinguished() {
    let (mut connection, far) = opened(Role::Sub).await;
    drop(far);
    assert!(matches!(connection.recv().await, Err(ZmtpError::Closed)));
    let answered = async |command: &[u8]| {
        let (near, mut far) = duplex(1 << 12);
        let mut hello = codec::greeting().to_vec();
        codec::put_frame(&mut hello, true, false, command);
        far.write_all(&hello).await.unwrap();
        Connection::handshake(near, Role::Sub, BOUND).await.err()
    };
    assert!(answered(&codec::ready("XPUB")).await.is_none());
    assert!(matches!(
        answered(&codec::ready("ROUTER")).await,
        Some(ZmtpError::Peer("SUB"))
    ));
    assert!(matches!(
        answered(b"\x05ERROR\x02no").await,
        Some(ZmtpError::Refused)
    ));
    assert!(matches!(
        answered(b"\x04PING\0\0").await,
        Some(ZmtpError::Codec(CodecError::Command))
    ));
}
