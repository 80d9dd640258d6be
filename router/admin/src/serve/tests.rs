use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Timeout for a busy machine.
const LONG: Duration = Duration::from_secs(60);

async fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads until `text` arrives. Returns false if the connection ends first.
async fn is_told(stream: &mut TcpStream, text: &str) -> bool {
    let mut read = Vec::new();
    let heard = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(LONG, heard).await.unwrap()
}

/// Starts a port with these bounds. `/` responds with 64 MB, `/now` with a short body.
async fn port(bounds: Bounds) -> (SocketAddr, Arc<Port>, JoinSet<()>) {
    let all = Router::new()
        .route("/", get(|| async { vec![b'x'; 64 << 20] }))
        .route("/now", get(|| async { "done" }));
    let probes = Router::new()
        .route("/livez", get(|| async { "alive" }))
        .fallback(|| async { "no room" });
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = listener.local_addr().unwrap();
    let port = Arc::new(Port::new(all, Handle::current(), probes, bounds));
    let mut serving = JoinSet::new();
    serving.spawn(accept(listener, Arc::clone(&port)));
    (address, port, serving)
}

fn bounds(connections: usize, requests: usize) -> Bounds {
    Bounds {
        connections,
        requests,
        head: LONG,
        patience: LONG,
    }
}

/// Keeps `count` silent connections open, and reopens those that the server closes. Counts the opened ones.
fn keep_silent(address: SocketAddr, count: usize, stop: &Arc<AtomicBool>, opened: &Arc<AtomicUsize>) {
    let (stop, opened) = (Arc::clone(stop), Arc::clone(opened));
    std::thread::spawn(move || {
        let mut silent: Vec<std::net::TcpStream> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            silent.retain(|stream| {
                let ended = std::io::Read::read(&mut &*stream, &mut [0]);
                ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            });
            while silent.len() < count && !stop.load(Ordering::Relaxed) {
                if let Ok(stream) = std::net::TcpStream::connect(address) {
                    stream.set_nonblocking(true).unwrap();
                    silent.push(stream);
                    opened.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_is_answered_while_a_thousand_silent_connections_are_opened_again_and_again() {
    let (address, _port, _serving) = port(BOUNDS).await;
    let (stop, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    keep_silent(address, 1_000, &stop, &opened);
    let begun = Instant::now();
    while opened.load(Ordering::Relaxed) < 2_000 {
        assert!(begun.elapsed() < LONG, "they are closed and opened again");
        tokio::task::yield_now().await;
    }
    let mut times = Vec::new();
    for _ in 0..100 {
        let asked = Instant::now();
        let mut probe = ask(address, "/livez").await;
        // A connection closed before its head was read counts as one that took too long.
        let told = is_told(&mut probe, "alive").await;
        times.push(if told { asked.elapsed() } else { LONG });
    }
    stop.store(true, Ordering::Relaxed);
    times.sort();
    // A kubelet waits for one second. Other tests compete for the processors, so a few probes take longer.
    assert!(times[90] <= Duration::from_secs(1), "{times:?}");
}

#[tokio::test]
async fn requests_that_nobody_reads_leave_room_for_probes_and_others_are_refused_at_once() {
    let (address, port, _serving) = port(bounds(3, 1)).await;
    let unread = ask(address, "/").await;
    unread.readable().await.unwrap();
    assert_eq!(port.requests.available_permits(), 0);
    for _ in 0..8 {
        let mut probe = ask(address, "/livez").await;
        assert!(is_told(&mut probe, "alive").await);
        let mut other = ask(address, "/now").await;
        assert!(is_told(&mut other, "no room").await);
    }
    assert_eq!(port.requests.available_permits(), 0, "the one that began goes on");
}

#[tokio::test]
async fn a_silent_connection_is_closed_for_a_new_one_and_one_that_is_answered_is_not() {
    let (address, _port, _serving) = port(bounds(2, 1)).await;
    let mut answered = ask(address, "/").await;
    answered.readable().await.unwrap();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut new = ask(address, "/livez").await;
    assert!(is_told(&mut new, "alive").await);
    assert!(!is_told(&mut silent, "anything").await, "closed");
    let mut read = 0;
    let mut piece = vec![0; 1 << 20];
    while read < 64 << 20 {
        let count = answered.read(&mut piece).await.unwrap();
        assert!(count > 0, "{read} bytes");
        read += count;
    }
}

#[tokio::test]
async fn who_does_not_read_loses_its_place() {
    let (address, port, _serving) = port(Bounds {
        patience: Duration::from_millis(100),
        ..bounds(1, 1)
    })
    .await;
    let idle = ask(address, "/").await;
    idle.readable().await.unwrap();
    assert_eq!(port.connections.free(), 0);
    // The connections recover without intervention.
    let begun = Instant::now();
    while port.connections.free() == 0 {
        assert!(begun.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the parts of a router with one worker, which does not answer.
pub(crate) fn admin_of_one_worker() -> Arc<Admin> {
    let overrides = config::Overrides {
        workers: vec!["http://127.0.0.1:9".to_owned()],
        ..Default::default()
    };
    let config = config::load_file(None, BTreeMap::new(), overrides).unwrap();
    let state = state::State::new(config).unwrap();
    let proxy = proxy::Proxy::new(Arc::clone(&state), None).unwrap();
    Arc::new(Admin {
        state,
        proxy,
        bus: None,
        history: crate::history::History::default(),
    })
}

#[tokio::test]
async fn a_probe_waits_for_no_thread_that_is_busy_with_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = AdminPort::start(admin_of_one_worker(), listener).unwrap();
    // Blocks the only thread that serves requests.
    let mut probe = std::net::TcpStream::connect(address).unwrap();
    probe.set_read_timeout(Some(LONG)).unwrap();
    let request = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut probe, request).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut probe, &mut answer).unwrap();
    assert!(answer.ends_with("alive\n"), "{answer}");
    let mut metrics = ask(address, "/metrics").await;
    assert!(
        is_told(&mut metrics, "tailroute_").await,
        "what else is asked for is answered too"
    );
    drop(port);
    assert!(
        !is_told(&mut metrics, "anything").await,
        "its connections end with the port"
    );
}
