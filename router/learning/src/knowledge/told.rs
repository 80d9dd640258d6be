//! What one worker's events tell, and whether they are coming.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use policy::evidence::{Resident, TurnBlocks, WorkerEvidence};
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;

use super::{Counted, Scale};

/// One worker's events.
#[derive(Debug)]
pub(super) struct Told {
    live: AtomicBool,
    /// Tokens per block as configured; events know better.
    block_size: u32,
    known: RwLock<WorkerEvidence>,
}

impl Told {
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

    /// Tokens per block.
    pub(super) fn block_size(&self) -> u64 {
        if !self.is_live() {
            return self.block_size.into();
        }
        match self.known.read().block_size() {
            0 => self.block_size.into(),
            told => told.into(),
        }
    }

    /// What the events say of a prompt, and tokens per block. `None` if they say nothing, or are not coming.
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

    /// Store events so far, if they are coming.
    pub(super) fn stored(&self) -> Option<u64> {
        self.is_live().then(|| self.known.read().stored())
    }

    pub(super) fn change<T>(&self, apply: impl FnOnce(&mut WorkerEvidence) -> T) -> T {
        apply(&mut self.known.write())
    }

    /// A turn is over: its keys, prompt and reply, are bound to blocks.
    pub(super) fn turn_over(&self, turn: &Counted<'_>, session: [u64; 2], all: &Chain, scale: &Scale) {
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
