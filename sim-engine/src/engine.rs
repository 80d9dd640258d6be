//! The handle that starts and stops an engine.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::{ConfigError, EngineConfig};
use crate::events::log::EventLog;
use crate::events::publish::{self, KvEventSource};
use crate::fault::Fault;
use crate::http::accept;
use crate::rank::{Ranks, Shared, drive};
use crate::responses::Responses;
use crate::stats::{Captured, Stats};

/// The reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The port cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// A ZMQ socket could not be bound.
    #[error("cannot publish cache events")]
    Events(#[from] zeromq::ZmqError),
}

/// A running engine. Dropping the handle stops it; [`Engine::shutdown`] also waits until its sockets are closed.
pub struct Engine {
    addr: SocketAddr,
    ranks: Ranks,
    tasks: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine on the current tokio runtime. Fails if the configuration is invalid, or a socket cannot be
    /// bound.
    pub async fn start(config: EngineConfig) -> Result<Self, StartError> {
        config.check()?;
        let address = config.listen;
        let listening = TcpListener::bind(address)
            .await
            .and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (addr, listener) = listening.map_err(|source| StartError::Listen { address, source })?;
        let mut tasks = Vec::new();
        let mut events: Vec<_> = (0..config.ranks).map(|_| (None, None)).collect();
        if let Some(kv_events) = &config.kv_events {
            let log = |rank| Arc::new(EventLog::new(kv_events.buffer, kv_events.style, rank));
            let logs: Vec<_> = (0..config.ranks).map(log).collect();
            for (publisher, at) in publish::start(kv_events, &logs)
                .await?
                .into_iter()
                .zip(&mut events)
            {
                let rank = publisher.source.rank as usize;
                *at = (Some(publisher.source), logs.get(rank).cloned());
                tasks.extend(publisher.tasks);
            }
        }
        let responses = Arc::new(Responses::default());
        let of_rank = |(source, log)| Shared::new(config.clone(), source, log, Arc::clone(&responses));
        let ranks: Ranks = events.into_iter().map(of_rank).map(Arc::new).collect();
        tasks.extend(ranks.iter().map(|shared| tokio::spawn(drive(Arc::clone(shared)))));
        let serve = accept::serve(Arc::clone(&ranks), listener, addr);
        tasks.push(tokio::spawn(serve));
        Ok(Self { addr, ranks, tasks })
    }

    /// Returns the address that the engine listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the engine's URL, such as `http://127.0.0.1:8100`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    #[allow(clippy::indexing_slicing, reason = "a checked configuration has a rank")]
    fn first(&self) -> &Shared {
        &self.ranks[0]
    }

    /// Returns the source of the first rank's cache events, if it publishes them.
    pub fn kv_source(&self) -> Option<&KvEventSource> {
        self.first().kv_source.as_ref()
    }

    /// Returns the counts of one rank since the start; `None` if there is no such rank.
    pub fn rank_stats(&self, rank: usize) -> Option<Stats> {
        self.ranks.get(rank).map(|rank| rank.stats())
    }

    /// Returns the counts of the first rank since the start.
    pub fn stats(&self) -> Stats {
        self.first().stats()
    }

    /// Waits until the first rank's counts satisfy `enough`, so that tests can wait for an abort without sleeping.
    pub async fn stats_when(&self, enough: impl Fn(&Stats) -> bool) -> Stats {
        loop {
            // Registered before reading the counts, so that no change is missed.
            let mut changed = std::pin::pin!(self.first().changed.notified());
            changed.as_mut().enable();
            let stats = self.stats();
            if enough(&stats) {
                return stats;
            }
            changed.await;
        }
    }

    /// Returns the latest requests under `/v1`, oldest first, if `capture` is configured.
    pub fn captured(&self) -> Vec<Captured> {
        self.ranks.iter().flat_map(|rank| rank.captured()).collect()
    }

    /// Sets the fault; the default is no fault. Must be called within the runtime.
    pub fn set_fault(&self, fault: Fault) {
        self.ranks.iter().for_each(|rank| rank.set_fault(fault.clone()));
    }

    /// Stops the engine, cuts open connections, and waits until the sockets are closed.
    pub async fn shutdown(mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
            // Aborted tasks return a cancellation error, which is expected.
            let _ = task.await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
