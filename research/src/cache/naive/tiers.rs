use crate::cache::tiers::Tier;
use crate::cache::{CacheConfig, Served};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// The twin of the tier stack: the tier of each token of a conversation.
pub(in crate::cache) struct NaiveTiers {
    config: CacheConfig,
    tiers: Vec<(u64, u64)>,
    all: Vec<(ConversationId, f64, Vec<usize>)>,
}

impl NaiveTiers {
    pub(in crate::cache) fn new(config: CacheConfig, lower: &[Tier]) -> Self {
        let top = (config.capacity.0, u64::from(config.block_tokens));
        let lower = lower
            .iter()
            .map(|tier| (tier.capacity.0, u64::from(tier.unit_tokens)));
        Self {
            config,
            tiers: std::iter::once(top).chain(lower).collect(),
            all: Vec::new(),
        }
    }

    pub(in crate::cache) fn per_tier(&self, id: ConversationId) -> Vec<Tokens> {
        let tokens = self.all.iter().find(|c| c.0 == id).map(|c| &c.2);
        let at = |tier| tokens.map_or(0, |tokens| tokens.iter().filter(|at| **at == tier).count());
        (0..self.tiers.len())
            .map(|tier| Tokens(at(tier) as u64))
            .collect()
    }

    pub(in crate::cache) fn served(&mut self, turn: &Served) {
        let id = turn.conversation;
        self.all.retain(|c| c.0 != id);
        let whole = turn.length.0 / self.tiers[0].1 * self.tiers[0].1;
        let next = turn.length.as_f64() + self.config.next_prompt.as_f64();
        self.all
            .push((id, next - self.config.xi_tokens, vec![0; whole as usize]));
        for tier in 0..self.tiers.len() {
            let (_, unit) = self.tiers[tier];
            // Free tokens first, those of the oldest conversation; then any.
            while self.excess(tier) > 0 {
                let spared = |c: ConversationId| self.config.forced && tier == 0 && c == id;
                let free = self
                    .all
                    .iter()
                    .position(|c| !spared(c.0) && self.free(c, tier) >= unit);
                let Some(at) = free else { break };
                let most = self.free(&self.all[at], tier) / unit * unit;
                self.demote(at, tier, most);
            }
            while self.excess(tier) > 0 {
                let holds = |c: &(_, _, Vec<usize>)| c.2.contains(&tier);
                let at = self.all.iter().position(holds).unwrap();
                self.demote(at, tier, u64::MAX);
            }
        }
    }

    fn excess(&self, tier: usize) -> u64 {
        let tokens = self.all.iter().flat_map(|c| &c.2);
        let used = tokens.filter(|at| **at == tier).count() as u64;
        used.saturating_sub(self.tiers[tier].0)
    }

    fn free(&self, (_, budget, tokens): &(ConversationId, f64, Vec<usize>), tier: usize) -> u64 {
        let block = f64::from(self.config.block_tokens);
        let budget = (budget.ceil().max(0.0) / block).ceil() * block;
        let past = tokens
            .iter()
            .enumerate()
            .filter(|(at, held)| **held == tier && *at as f64 >= budget);
        past.count() as u64
    }

    /// Moves the excess down, at most `most`, as one piece; afterwards every tier holds whole units again.
    fn demote(&mut self, at: usize, tier: usize, most: u64) {
        let mut missing = self.excess(tier).div_ceil(self.tiers[tier].1) * self.tiers[tier].1;
        missing = missing.min(most);
        let tokens = &mut self.all[at].2;
        for held in tokens
            .iter_mut()
            .rev()
            .filter(|held| **held == tier)
            .take(missing as usize)
        {
            *held += 1;
        }
        for lower in tier + 1..=self.tiers.len() {
            let here = tokens.iter().filter(|held| **held == lower).count() as u64;
            // There is nothing below the last tier.
            let broken = self.tiers.get(lower).map_or(here, |(_, unit)| here % unit);
            if broken > 0 {
                let end = tokens.iter().rposition(|held| *held == lower).unwrap() + 1;
                tokens.truncate(end - broken as usize);
            }
        }
    }
}
