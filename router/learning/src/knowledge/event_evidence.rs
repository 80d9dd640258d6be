//! Evidence from one worker's cache events, and whether its event stream is live.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use policy::evidence::{Resident, TurnBlocks, WorkerEvidence};
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;

use super::{CountedTurn, Scale};

#[derive(Debug)]
pub(super) struct EventEvidence {
    live: AtomicBool,
    /// Configured tokens per block. The number in events takes precedence.
    block_size: u32,
    known: RwLock<WorkerEvidence>,
}

impl EventEvidence {
    pub(super) fn new(block_size: u32) -> Self {
        Self {
            live: AtomicBool::new(false),
            block_size: block_size.max(1),
            known: RwLock::default(),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Release);
    }

    pub(super) fn block_size(&self) -> u64 {
        if !self.is_live() {
            return self.block_size.into();
        }
        match self.known.read().block_size() {
            0 => self.block_size.into(),
            told => told.into(),
        }
    }

    /// Returns a prompt's resident part by the events, if they know of it and are live, and the tokens per block.
    pub(super) fn resident(&self, chain: &[PrefixHash]) -> (Option<Resident>, u64) {
        if !self.is_live() {
            return (None, self.block_size.into());
        }
        let known = self.known.read();
        let block = match known.block_size() {
            0 => self.block_size,
            told => told,
        };
        (known.resident(chain), block.into())
    }

    pub(super) fn stored(&self) -> Option<u64> {
        self.is_live().then(|| self.known.read().stored())
    }

    pub(super) fn change<T>(&self, apply: impl FnOnce(&mut WorkerEvidence) -> T) -> T {
        apply(&mut self.known.write())
    }

    /// Binds the keys of a completed turn, prompt and reply, to blocks.
    pub(super) fn turn_over(&self, turn: &CountedTurn<'_>, session: [u64; 2], all: &Chain, scale: &Scale) {
        let keys = all.hashes().iter().zip(all.ends());
        let keys = keys.map(|(&key, &end)| (key, scale.tokens(end))).collect();
        self.known.write().turn_over(TurnBlocks {
            session,
            since: turn.since,
            cached: turn.cached,
            keys,
            prompt: turn.prompt_tokens,
            total: turn.prompt_tokens + turn.reply_tokens,
        });
    }
}
