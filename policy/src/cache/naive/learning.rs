use crate::cache::flop_aware::{FlopAwareOptions, Utility};
use crate::cache::workload_aware::Habits;
use crate::cache::{CacheConfig, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// The twin of workload-aware eviction: all conversations, a block at a time. What was learned of the classes it shares.
pub(in crate::cache) struct NaiveWorkload {
    config: CacheConfig,
    habits: Habits,
    /// Oldest first: conversation, class, last turn, resident tokens.
    all: Vec<(ConversationId, usize, f64, u64)>,
}

impl NaiveWorkload {
    pub(in crate::cache) fn new(config: CacheConfig) -> Self {
        Self {
            config,
            habits: Habits::default(),
            all: Vec::new(),
        }
    }

    pub(in crate::cache) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.all.iter().map(|c| (c.0, Tokens(c.3))).collect()
    }

    pub(in crate::cache) fn served(&mut self, turn: &Served) {
        let class = self.habits.learn(turn);
        let unit = u64::from(self.config.block_tokens);
        self.all.retain(|c| c.0 != turn.conversation);
        let resident = turn.length.0 / unit * unit;
        self.all.push((turn.conversation, class, turn.at.0, resident));
        self.all.retain(|c| c.3 > 0);
        while self.excess() > 0 {
            let others: Vec<_> = self
                .all
                .iter()
                .filter(|c| !self.config.forced || c.0 != turn.conversation)
                .collect();
            // Within a class the oldest; of those the least likely, the longest, the one of the lowest class.
            let mut heads: Vec<_> = others
                .iter()
                .filter(|c| {
                    others
                        .iter()
                        .find(|older| older.1 == c.1)
                        .is_some_and(|oldest| oldest.0 == c.0)
                })
                .collect();
            heads.sort_by_key(|c| c.1);
            let worth = |c: &(_, usize, f64, u64)| self.habits.reuse(c.1, turn.at.0 - c.2);
            let least = heads
                .into_iter()
                .min_by(|a, b| worth(a).total_cmp(&worth(b)).then(b.3.cmp(&a.3)));
            let victim = least.map_or(turn.conversation, |c| c.0);
            // Chosen once for all that is missing.
            while self.excess() > 0 && self.all.iter().any(|c| c.0 == victim) {
                self.all.iter_mut().find(|c| c.0 == victim).unwrap().3 -= unit;
                self.all.retain(|c| c.3 > 0);
            }
        }
    }

    fn excess(&self) -> u64 {
        let used: u64 = self.all.iter().map(|c| c.3).sum();
        used.saturating_sub(self.config.capacity.0)
    }
}

/// The twin of FLOP-aware eviction with a given weight: a list of states, whole ones evicted.
pub(in crate::cache) struct NaiveFlops {
    config: CacheConfig,
    utility: Utility,
    /// Oldest first: conversation, tokens before its state, utility.
    all: Vec<(ConversationId, u64, f64)>,
}

impl NaiveFlops {
    pub(in crate::cache) fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        Self {
            config,
            utility: Utility::new(options),
            all: Vec::new(),
        }
    }

    pub(in crate::cache) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.all.iter().map(|c| (c.0, Tokens(c.1))).collect()
    }

    pub(in crate::cache) fn served(&mut self, turn: &Served) {
        self.utility.learn(turn);
        self.all.retain(|c| c.0 != turn.conversation);
        let value = self.utility.of(turn.length);
        self.all.push((turn.conversation, turn.length.0, value));
        let state = self.utility.state_tokens().0;
        while self.all.iter().map(|c| c.1 + state).sum::<u64>() > self.config.capacity.0 {
            let others = self
                .all
                .iter()
                .filter(|c| !self.config.forced || c.0 != turn.conversation);
            let least = others.min_by(|a, b| a.2.total_cmp(&b.2));
            let victim = least.map_or(turn.conversation, |c| c.0);
            self.all.retain(|c| c.0 != victim);
        }
    }
}
