use crate::cache::et_lru::{EtLruOptions, ExpectedExcess};
use crate::cache::flop_aware::tuning::{BOOTSTRAP, GRID, GROWTH, MARGIN};
use crate::cache::flop_aware::{FlopAwareOptions, Utility, Worth};
use crate::cache::workload_aware::Habits;
use crate::cache::{CacheConfig, Served};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// The twin of workload-aware eviction: all conversations, a block at a time. Shares the class estimates.
pub(in crate::cache) struct NaiveWorkload {
    config: CacheConfig,
    habits: Habits,
    /// Conversation, class, last turn and resident tokens, oldest first.
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
            // The oldest of each class; of those the least likely, the longest, the one of the lowest class.
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
            // Chosen once for the whole excess.
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

/// The twin of FLOP-aware eviction and its tuning: a list of states, evicted whole, ranked at every eviction, with
/// turns recorded since a copy of the list.
#[derive(Clone)]
pub(in crate::cache) struct NaiveFlops {
    config: CacheConfig,
    utility: Utility,
    /// Conversation, tokens before its state, and the state's worth, oldest first.
    all: Vec<(ConversationId, u64, Worth)>,
    windows: Option<(usize, usize)>,
    turns: usize,
    copy: Option<Box<Self>>,
    since: Vec<Served>,
    until: usize,
}

impl NaiveFlops {
    pub(in crate::cache) fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        Self {
            config,
            utility: Utility::new(options),
            all: Vec::new(),
            windows: options.tuning(),
            turns: 0,
            copy: None,
            since: Vec::new(),
            until: 0,
        }
    }

    pub(in crate::cache) fn weight(&self) -> f64 {
        self.utility.weight()
    }

    pub(in crate::cache) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.all.iter().map(|c| (c.0, Tokens(c.1))).collect()
    }

    pub(in crate::cache) fn served(&mut self, turn: &Served) {
        let evicted = self.serve(turn);
        self.turns += 1;
        let Some((least, most)) = self.windows else { return };
        if let Some(copy) = &self.copy {
            self.since.push(*turn);
            if self.since.len() == self.until {
                let saved = GRID.map(|weight| (weight, copy.saved(&self.since, weight)));
                let worth_it = |best: (f64, u64), next: (f64, u64)| {
                    if next.1 > best.1 + best.1 / MARGIN {
                        next
                    } else {
                        best
                    }
                };
                let best = saved.into_iter().fold((0.0, 0), worth_it).0;
                self.utility.set_weight(best);
                self.begin(most.min(self.until * GROWTH));
            }
        } else if evicted {
            self.begin((self.turns * BOOTSTRAP).max(least).min(most));
        }
    }

    fn begin(&mut self, turns: usize) {
        (self.copy, self.since, self.until) = (None, Vec::new(), turns);
        self.copy = Some(Box::new(self.clone()));
    }

    fn saved(&self, turns: &[Served], weight: f64) -> u64 {
        let mut replay = self.clone();
        replay.utility.set_weight(weight);
        let mut saved = 0;
        for turn in turns {
            let state = replay
                .all
                .iter()
                .find(|c| c.0 == turn.conversation)
                .map_or(0, |c| c.1);
            if state + turn.prompt.0 <= turn.length.0 {
                saved += state;
            }
            replay.serve(turn);
        }
        saved
    }

    fn serve(&mut self, turn: &Served) -> bool {
        self.utility.learn(turn);
        self.all.retain(|c| c.0 != turn.conversation);
        let worth = self.utility.of(turn.length);
        let unit = u64::from(self.config.block_tokens);
        self.all
            .push((turn.conversation, turn.length.0 / unit * unit, worth));
        let state = self.utility.state_tokens().0.div_ceil(unit) * unit;
        let mut evicted = false;
        while self.all.iter().map(|c| c.1 + state).sum::<u64>() > self.config.capacity.0 {
            let others = self
                .all
                .iter()
                .filter(|c| !self.config.forced || c.0 != turn.conversation);
            let score = |worth| self.utility.score(worth);
            let least = others.min_by(|a, b| score(a.2).total_cmp(&score(b.2)));
            let victim = least.map_or(turn.conversation, |c| c.0);
            self.all.retain(|c| c.0 != victim);
            evicted = true;
        }
        evicted
    }
}

/// The twin of learning ET-LRU: a list, searched for every block. Shares the estimates.
pub(in crate::cache) struct NaiveExpected {
    config: CacheConfig,
    excess: ExpectedExcess,
    all: Vec<Expected>,
}

struct Expected {
    id: ConversationId,
    length: u64,
    resident: u64,
    weight: f64,
    value: f64,
}

impl NaiveExpected {
    pub(in crate::cache) fn new(config: CacheConfig, options: EtLruOptions) -> Self {
        Self {
            config,
            excess: ExpectedExcess::new(&config, options),
            all: Vec::new(),
        }
    }

    pub(in crate::cache) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.all.iter().map(|c| (c.id, Tokens(c.resident))).collect()
    }

    fn over(&self) -> bool {
        self.all.iter().map(|c| c.resident).sum::<u64>() > self.config.capacity.0
    }

    /// Returns the value of a conversation's last token, by the current estimates.
    fn value(&self, at: usize) -> f64 {
        let c = &self.all[at];
        self.excess.value(c.weight, c.length, c.resident).0
    }

    pub(in crate::cache) fn served(&mut self, turn: &Served) {
        let weight = self.excess.learn(turn);
        let unit = u64::from(self.config.block_tokens);
        self.all.retain(|c| c.id != turn.conversation);
        let (id, length) = (turn.conversation, turn.length.0);
        let resident = length / unit * unit;
        self.all.push(Expected {
            id,
            length,
            resident,
            weight,
            value: 0.0,
        });
        let last = self.all.len() - 1;
        self.all[last].value = self.value(last);
        self.all.retain(|c| c.resident > 0);
        while self.over() {
            let others = (0..self.all.len()).filter(|at| !self.config.forced || self.all[*at].id != id);
            let least = others.min_by(|a, b| self.all[*a].value.total_cmp(&self.all[*b].value));
            let victim = least.unwrap_or(self.all.len() - 1);
            // Chosen once for all its tokens of equal value.
            let alike = self.value(victim);
            while self.over() && self.all[victim].resident > 0 && self.value(victim) == alike {
                self.all[victim].resident -= unit;
            }
            self.all[victim].value = self.value(victim);
            self.all.retain(|c| c.resident > 0);
        }
    }
}
