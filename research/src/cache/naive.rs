//! The naive twin: every policy by its definition, over a list that is sorted and scanned again for every token or
//! block. Slow and short, and shares only the types with the real ones.

mod learning;
mod tiers;

pub(super) use self::learning::{NaiveExpected, NaiveFlops, NaiveWorkload};
pub(super) use self::tiers::NaiveTiers;
use super::et_lru::EtLruOptions;
use super::{CacheConfig, Future, PolicySpec, Served};
use policy::cost::PrefillCost;
use policy::ids::ConversationId;
use policy::units::Tokens;

#[derive(Clone, Debug)]
struct Conversation {
    id: ConversationId,
    served_at: u64,
    length: u64,
    resident: u64,
    future: Future,
    at_ms: f64,
    frequency: f64,
    h: f64,
}

pub(super) struct Naive {
    spec: PolicySpec,
    config: CacheConfig,
    all: Vec<Conversation>,
    clock: u64,
    inflation: f64,
    frequencies: std::collections::HashMap<ConversationId, f64>,
}

impl Naive {
    pub(super) fn new(spec: PolicySpec, config: CacheConfig) -> Self {
        Self {
            spec,
            config,
            all: Vec::new(),
            clock: 0,
            inflation: 0.0,
            frequencies: Default::default(),
        }
    }

    pub(super) fn resident(&self, id: ConversationId) -> Tokens {
        Tokens(self.all.iter().find(|c| c.id == id).map_or(0, |c| c.resident))
    }

    pub(super) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.all
            .iter()
            .filter(|c| c.resident > 0)
            .map(|c| (c.id, Tokens(c.resident)))
            .collect()
    }

    fn over(&self) -> bool {
        self.all.iter().map(|c| c.resident).sum::<u64>() > self.config.capacity.0
    }

    fn unit(&self) -> u64 {
        self.config.block()
    }

    /// Returns whether the last token is past `L + next − ξ`, which may be negative; compared as real numbers, unlike
    /// in the real policies.
    fn is_free(&self, c: &Conversation, next: Tokens) -> bool {
        c.resident > 0
            && c.resident as f64 - self.unit() as f64
                >= c.length as f64 + next.as_f64() - self.config.xi_tokens
    }

    pub(super) fn served(&mut self, turn: &Served) {
        self.clock += 1;
        self.all.retain(|c| c.id != turn.conversation);
        let resident = turn.length.0 - turn.length.0 % self.unit();
        let (id, length, future, served_at) = (turn.conversation, turn.length.0, turn.future, self.clock);
        self.all.push(Conversation {
            id,
            served_at,
            length,
            resident,
            future,
            at_ms: turn.at.0,
            frequency: 0.0,
            h: 0.0,
        });
        let spared = self.config.forced.then_some(self.clock);
        let q_hat = self.config.next_prompt;
        let true_q = move |c: &Conversation| match c.future {
            Future::Next { prompt, .. } => prompt,
            _ => q_hat,
        };
        match self.spec.clone() {
            PolicySpec::Lru => {}
            PolicySpec::ThresholdLru(threshold) => {
                if spared.is_none() && turn.length < threshold {
                    self.drop_if(|c| c.served_at == served_at);
                }
            }
            PolicySpec::TLru => self.trim(spared, |_| q_hat),
            PolicySpec::TLruTrimAll => {
                if self.over() {
                    for at in 0..self.all.len() {
                        while Some(self.all[at].served_at) != spared && self.is_free(&self.all[at], q_hat) {
                            self.all[at].resident -= self.unit();
                        }
                    }
                }
            }
            PolicySpec::TLruPrinted => {
                for at in 0..self.all.len() {
                    let c = &self.all[at];
                    let printed =
                        c.resident as f64 >= c.length as f64 + q_hat.as_f64() - self.config.xi_tokens;
                    if self.over() && c.resident > 0 && printed && Some(c.served_at) != spared {
                        self.all[at].resident -= self.unit();
                    }
                }
            }
            PolicySpec::EndAware => {
                self.drop_if(|c| c.future == Future::Last && Some(c.served_at) != spared);
                self.trim(spared, |_| q_hat);
            }
            PolicySpec::LengthAware => {
                self.drop_if(|c| c.future == Future::Last && Some(c.served_at) != spared);
                self.trim(spared, true_q);
            }
            PolicySpec::EtLru(options) => return self.expected(spared, &options),
            PolicySpec::WorkloadAware | PolicySpec::FlopAware(_) => {
                unreachable!("they have separate twins")
            }
            PolicySpec::Tiers(_) => self.trim(spared, |_| q_hat),
            PolicySpec::Gdfs(attention) => return self.greedy_dual(spared, attention),
            PolicySpec::Belady => return self.furthest(spared),
            PolicySpec::ToBelady => {
                if spared.is_none() {
                    self.drop_if(|c| c.future == Future::Last);
                    for at in 0..self.all.len() {
                        while self.is_free(&self.all[at], true_q(&self.all[at])) {
                            self.all[at].resident -= self.unit();
                        }
                    }
                } else {
                    for at in 0..self.all.len() {
                        let c = &self.all[at];
                        let (ended, me) = (c.future == Future::Last, c.served_at);
                        while self.over()
                            && Some(me) != spared
                            && self.all[at].resident > 0
                            && (ended || self.is_free(&self.all[at], true_q(&self.all[at])))
                        {
                            self.all[at].resident -= self.unit();
                        }
                    }
                }
                return self.furthest(spared);
            }
        }
        while self.over() {
            let oldest = self.all.iter_mut().find(|c| c.resident > 0).unwrap();
            oldest.resident -= self.config.block();
        }
    }

    fn drop_if(&mut self, ended: impl Fn(&Conversation) -> bool) {
        for c in self.all.iter_mut().filter(|c| ended(c)) {
            c.resident = 0;
        }
    }

    fn trim(&mut self, spared: Option<u64>, next: impl Fn(&Conversation) -> Tokens) {
        while self.over() {
            let free = |c: &&Conversation| Some(c.served_at) != spared && self.is_free(c, next(c));
            let Some(at) = self.all.iter().find(free).map(|c| c.served_at) else {
                return;
            };
            let unit = self.unit();
            self.all.iter_mut().find(|c| c.served_at == at).unwrap().resident -= unit;
        }
    }

    fn furthest(&mut self, spared: Option<u64>) {
        while self.over() {
            let when = |c: &Conversation| match c.future {
                Future::Next { position, .. } => position,
                _ => u64::MAX,
            };
            let unit = self.unit();
            let others = self
                .all
                .iter()
                .filter(|c| c.resident > 0 && Some(c.served_at) != spared);
            let victim = others
                .max_by_key(|c| (when(c), std::cmp::Reverse(c.served_at)))
                .map_or(spared.unwrap_or(0), |c| c.served_at);
            self.all
                .iter_mut()
                .find(|c| c.served_at == victim)
                .unwrap()
                .resident -= unit;
        }
    }

    /// Evicts by Policy 2 of the paper, token by token, with equal hazards and all parameters given.
    fn expected(&mut self, spared: Option<u64>, options: &EtLruOptions) {
        let decay_per_ms = options.decay_per_s.unwrap() / 1e3;
        while self.over() {
            let value = |c: &Conversation| {
                let z = self.config.xi_tokens - (c.length - c.resident) as f64;
                decay_per_ms * c.at_ms + (options.prompts.as_ref().unwrap().level(z).0 + options.epsilon).ln()
            };
            let unit = self.unit();
            let others = self
                .all
                .iter()
                .filter(|c| c.resident > 0 && Some(c.served_at) != spared);
            let victim =
                others.min_by(|a, b| value(a).total_cmp(&value(b)).then(a.served_at.cmp(&b.served_at)));
            let victim = victim.map_or(spared.unwrap_or(0), |c| c.served_at);
            self.all
                .iter_mut()
                .find(|c| c.served_at == victim)
                .unwrap()
                .resident -= unit;
        }
    }

    fn greedy_dual(&mut self, spared: Option<u64>, attention: f64) {
        let served = self.all.last_mut().unwrap();
        served.frequency = self.frequencies.get(&served.id).copied().unwrap_or(0.0) + 1.0;
        // The same sums as the real policy, since equal ranks are ordered by age.
        let cost = PrefillCost {
            gamma_ms_per_token2: attention,
            ..PrefillCost::linear(1.0, 0.0)
        };
        let whole = cost.marginal(Tokens(served.length), Tokens::ZERO).0;
        served.h = self.inflation + served.frequency * (whole / (served.length as f64).max(1.0));
        while self.over() {
            let unit = self.unit();
            let others = self
                .all
                .iter()
                .filter(|c| c.resident > 0 && Some(c.served_at) != spared);
            let victim = others.min_by(|a, b| a.h.total_cmp(&b.h).then(a.served_at.cmp(&b.served_at)));
            let victim = victim.map_or(spared.unwrap_or(0), |c| c.served_at);
            let victim = self.all.iter_mut().find(|c| c.served_at == victim).unwrap();
            victim.resident -= unit;
            if victim.resident == 0 {
                self.inflation = self.inflation.max(victim.h);
            }
        }
        self.frequencies = self
            .all
            .iter()
            .filter(|c| c.resident > 0)
            .map(|c| (c.id, c.frequency))
            .collect();
    }
}
