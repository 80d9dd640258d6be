//! Clients that generate the load. Each waits for a response before its next request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::body::{Asked, Request};
use crate::wire::Connection;

/// The clients' counters. The clients run on one thread; the atomics are only for sharing.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests sent.
    pub asked: AtomicU64,
    /// Complete responses.
    pub answers: AtomicU64,
    /// Events read, including those of incomplete responses.
    pub events: AtomicU64,
    /// Streams whose first event has come.
    pub begun: AtomicU64,
    stop: AtomicBool,
}

/// Latencies of requests or tokens.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// From sending to the end of the response.
    pub whole: Vec<Duration>,
    /// From sending to the first event.
    pub first: Vec<Duration>,
    /// Between one event and the next.
    pub gaps: Vec<Duration>,
}

/// Running clients.
#[derive(Debug)]
pub(crate) struct Load {
    /// Their counters.
    pub counts: Arc<Counts>,
    /// Whether they may send requests.
    open: watch::Sender<bool>,
    clients: JoinSet<anyhow::Result<Times>>,
}

/// The behaviour of clients.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Number of clients.
    pub clients: usize,
    /// Parameters of their requests.
    pub asked: Asked,
    /// Number of the first client, so that conversations of different loads differ.
    pub seed: u64,
    /// Time over which they start.
    pub spread: Duration,
    /// Turns per conversation.
    pub turns: u64,
    /// Requests per client, after which it stops.
    pub requests: u64,
}

impl Load {
    pub(crate) fn start(target: SocketAddr, shape: Shape) -> Self {
        let counts = Arc::new(Counts::default());
        let open = watch::Sender::new(true);
        let mut clients = JoinSet::new();
        for client in 0..shape.clients as u64 {
            let counts = Arc::clone(&counts);
            let mut gate = open.subscribe();
            let delay = shape.spread.mul_f64(client as f64 / shape.clients as f64);
            clients.spawn(async move {
                tokio::time::sleep(delay).await;
                let talk = talk(target, shape, shape.seed + client, &counts, &mut gate).await;
                talk.with_context(|| format!("client {client}"))
            });
        }
        Self {
            counts,
            open,
            clients,
        }
    }

    /// Resumes paused clients.
    pub(crate) fn resume(&self) {
        self.open.send_replace(true);
    }

    /// Pauses the clients and waits for their pending responses.
    pub(crate) async fn pause(&mut self, limit: Duration) -> anyhow::Result<()> {
        self.open.send_replace(false);
        self.until(limit, |counts| {
            counts.answers.load(Ordering::Relaxed) == counts.asked.load(Ordering::Relaxed)
        })
        .await
    }

    /// Waits for `time`, or until a client fails.
    pub(crate) async fn run(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = tokio::time::Instant::now() + time;
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, self.clients.join_next()).await {
            ended??;
        }
        tokio::time::sleep_until(until).await;
        Ok(())
    }

    /// Waits until the clients' counters are high enough, at most for `limit`.
    pub(crate) async fn until(
        &mut self,
        limit: Duration,
        enough: impl Fn(&Counts) -> bool,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        while !enough(&self.counts) {
            anyhow::ensure!(Instant::now() < until, "the clients did not get on");
            self.run(Duration::from_millis(1)).await?;
        }
        Ok(())
    }

    /// Stops the clients after their current responses. Returns their latencies.
    pub(crate) async fn finish(mut self) -> anyhow::Result<Times> {
        self.counts.stop.store(true, Ordering::Relaxed);
        self.resume();
        self.all().await
    }

    /// Waits until every client has made its requests.
    pub(crate) async fn all(&mut self) -> anyhow::Result<Times> {
        let mut all = Times::default();
        while let Some(ended) = self.clients.join_next().await {
            let times = ended??;
            all.whole.extend(times.whole);
            all.first.extend(times.first);
            all.gaps.extend(times.gaps);
        }
        Ok(all)
    }
}

async fn talk(
    target: SocketAddr,
    shape: Shape,
    seed: u64,
    counts: &Counts,
    gate: &mut watch::Receiver<bool>,
) -> anyhow::Result<Times> {
    let mut connection = Connection::open(target).await?;
    let mut request = Request::new(&target.to_string(), shape.asked, seed);
    let mut times = Times::default();
    for number in 0..shape.requests {
        // The sender is dropped only together with the clients.
        let _ = gate.wait_for(|open| *open).await;
        if counts.stop.load(Ordering::Relaxed) {
            break;
        }
        counts.asked.fetch_add(1, Ordering::Relaxed);
        // Conversation numbers need to be unique per client only, because each client has its own text.
        let bytes = request.turn(number / shape.turns, number);
        let sent = Instant::now();
        connection.send(bytes).await?;
        let mut last = None;
        let receive = connection.receive(|events| {
            if events == 0 {
                return;
            }
            counts.events.fetch_add(events, Ordering::Relaxed);
            let now = Instant::now();
            match last {
                None => {
                    times.first.push(now - sent);
                    counts.begun.fetch_add(1, Ordering::Relaxed);
                }
                Some(last) => {
                    times.gaps.push(now - last);
                    // Events in the same read count as without a gap.
                    times.gaps.extend((1..events.min(64)).map(|_| Duration::ZERO));
                }
            }
            last = Some(now);
        });
        receive.await.with_context(|| format!("request {number}"))?;
        counts.answers.fetch_add(1, Ordering::Relaxed);
        times.whole.push(sent.elapsed());
    }
    Ok(times)
}

/// Returns the `q` quantile of the times; NaN if there are none.
pub(crate) fn quantile(times: &mut [Duration], q: f64) -> f64 {
    times.sort_unstable();
    let at = ((times.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    times.get(at).map_or(f64::NAN, |time| time.as_secs_f64())
}
