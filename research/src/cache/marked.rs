//! The common part of the LRU family. After a turn, a [`Rule`] sets how many tokens of the conversation are worth
//! keeping. Eviction takes the tokens beyond that first, then the rest, from the oldest conversation on. The rules also
//! apply to shared blocks, as marks in the engines' cache ([`crate::simulate::shared`]).

use super::recency::{NO_BUDGET, Recency};
use super::{CacheConfig, CachePolicy, Served};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// The part of a just served conversation that is worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// The whole conversation.
    All,
    /// The first tokens; the others are *free*, and are evicted when room is needed.
    First(Tokens),
    /// No token: the conversation is evicted now, or, under forced caching, when another one is served.
    Nothing,
}

/// The extent to which free tokens are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// No conversation has free tokens.
    Never,
    /// Free tokens are evicted oldest conversation first, until the cache fits.
    Needed,
    /// All free tokens are evicted as soon as the cache overflows.
    All,
}

/// A policy of the LRU family.
pub trait Rule {
    /// Extent to which free tokens are evicted.
    const TRIM: Trim;

    /// Returns how much of the conversation is worth keeping after this turn.
    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth;
}

/// LRU with a rule for the part of a conversation that is worth keeping.
#[derive(Clone, Debug)]
pub struct Marked<R> {
    recency: Recency,
    config: CacheConfig,
    rule: R,
    /// A conversation of no worth, forced to stay until another one is served.
    leaving: Option<ConversationId>,
}

impl<R: Rule> Marked<R> {
    /// Creates an empty cache under this rule.
    pub fn with_rule(config: CacheConfig, rule: R) -> Self {
        Self {
            recency: Recency::new(&config),
            config,
            rule,
            leaving: None,
        }
    }
}

impl<R: Rule + Default> Marked<R> {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        Self::with_rule(config, R::default())
    }
}

impl<R: Rule> CachePolicy for Marked<R> {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.recency.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        if let Some(leaving) = self.leaving.take() {
            self.recency.forget(leaving);
        }
        let forced = self.config.forced;
        let budget = match self.rule.worth(&self.config, turn) {
            Worth::All => NO_BUDGET,
            Worth::First(budget) => budget.0,
            Worth::Nothing if forced => {
                self.leaving = Some(turn.conversation);
                NO_BUDGET
            }
            Worth::Nothing => return self.recency.forget(turn.conversation),
        };
        self.recency.touch(turn.conversation, turn.length, budget);
        match R::TRIM {
            Trim::Needed => self.recency.trim_free(forced),
            Trim::All if !self.recency.fits() => self.recency.trim_all_free(forced),
            Trim::All | Trim::Never => {}
        }
        self.recency.evict_oldest();
    }

    fn used(&self) -> Tokens {
        self.recency.used()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.recency.dump()
    }

    fn check(&self) -> Result<(), String> {
        self.recency.check()
    }
}
