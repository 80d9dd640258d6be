//! Converts cells into prompts. A cell's history is the beginning of one long text, so that a long history also warms
//! shorter ones. A separate request primes it; the worker's report of cached tokens shows whether it is there. The new
//! part was never sent before, in this measurement or an earlier one: its seed includes the clock. Tokens are counted
//! by the worker's `usage`; two prompts at the beginning determine the tokens per word.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use policy::units::Millis;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use super::chat::{Answer, Ask};
use super::discover::{self, Load};
use super::{Client, ProbeError};
use crate::sample::{Cell, Clock, Facts, Sample};
use crate::source::{Source, SourceError};

/// Generated tokens per probe: the first one may be invisible.
const RESPONSE_TOKENS: u32 = 4;
/// Polling interval while a worker has other work.
const LOOK: Duration = Duration::from_millis(250);
/// Consecutive probes that may overlap with other work before the measurement ends.
const MOST_TRIES: u32 = 5;

/// The number of the history's text; texts that are sent once are numbered from here.
const HISTORY: u64 = 0;

/// A worker under measurement.
#[derive(Debug)]
pub struct Worker {
    client: Client,
    facts: Facts,
    /// Seed of the text.
    nonce: u64,
    /// Number of texts sent once.
    named: u64,
    /// Tokens of the chat template around a message.
    overhead: f64,
    tokens_per_word: f64,
    primed: HashSet<u64>,
    clock: Clock,
    /// Longest wait for other work to end; `None` disables the check.
    polite: Option<Duration>,
}

impl Worker {
    /// Collects a worker's facts and tokens per word. Fails if it cannot be measured, or does not report cached tokens.
    pub async fn prepare(
        client: Client,
        model: Option<&str>,
        polite: Option<Duration>,
    ) -> Result<Self, SourceError> {
        let facts = discover::facts(&client, model).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut worker = Self {
            client,
            facts,
            nonce: now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(32),
            named: HISTORY,
            overhead: 0.0,
            tokens_per_word: 1.0,
            primed: HashSet::new(),
            clock: Clock::Client,
            polite,
        };
        let (short, long) = (worker.fresh(128), worker.fresh(512));
        let tokens = |answer: &Answer| (answer.uncached + answer.cached).as_f64();
        worker.be_polite().await?;
        let few = worker.ask(&short).await?;
        worker.be_polite().await?;
        let many = worker.ask(&long).await?;
        worker.tokens_per_word = ((tokens(&many) - tokens(&few)) / 384.0).max(0.1);
        worker.overhead = (tokens(&few) - 128.0 * worker.tokens_per_word).max(0.0);
        worker.be_polite().await?;
        let again = worker.ask(&long).await?;
        if again.cached.0 == 0 {
            return Err(ProbeError::NoCache.into());
        }
        if [&few, &many, &again]
            .into_iter()
            .all(|answer| answer.engine.is_some())
        {
            worker.clock = Clock::Engine;
        }
        Ok(worker)
    }

    /// Switches to this program's clock, even if the engine reports times.
    pub fn use_own_clock(&mut self) {
        self.clock = Clock::Client;
    }

    /// Returns the HTTP client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the facts, for completion by the caller.
    pub fn facts_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }

    /// Returns a new text of about `tokens` tokens that was never sent before.
    pub fn fresh_tokens(&mut self, tokens: f64) -> String {
        let words = self.words_of(tokens).max(1);
        self.fresh(words)
    }

    fn fresh(&mut self, words: u64) -> String {
        self.named += 1;
        self.text(self.named, words)
    }

    fn words_of(&self, tokens: f64) -> u64 {
        (tokens / self.tokens_per_word).round().max(0.0) as u64
    }

    /// Returns the first `count` words of a text.
    fn text(&self, name: u64, count: u64) -> String {
        let mut rng = Pcg64::seed_from_u64(self.nonce ^ name.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut text = String::with_capacity(6 * count as usize);
        for _ in 0..count {
            text.push(' ');
            (0..rng.random_range(3..=5)).for_each(|_| text.push(char::from(rng.random_range(b'a'..=b'z'))));
        }
        text
    }

    async fn ask(&self, prompt: &str) -> Result<Answer, ProbeError> {
        self.client.chat(self.question(prompt, RESPONSE_TOKENS)).await
    }

    /// Returns a request with this prompt to the worker's model.
    pub fn question<'a>(&'a self, prompt: &'a str, tokens: u32) -> Ask<'a> {
        Ask {
            model: &self.facts.model,
            prompt,
            tokens,
            tiers: false,
        }
    }

    /// Returns the prefill time of a response by the measurement's clock. Fails if the engine did not report it.
    pub fn prefill(&self, answer: &Answer) -> Result<Millis, ProbeError> {
        match self.clock {
            Clock::Engine => answer
                .engine
                .ok_or(ProbeError::Incomplete("metrics of the engine")),
            Clock::Client => Ok(answer.first),
        }
    }

    /// Returns the prompt of a cell, after priming its history. Fails if priming fails.
    pub async fn prompt(&mut self, cell: Cell) -> Result<String, ProbeError> {
        // If there is a history, it includes the template's tokens.
        let (history, uncached) = (cell.cached_tokens as f64, cell.uncached_tokens as f64);
        if cell.cached_tokens == 0 {
            return Ok(self.fresh_tokens(uncached - self.overhead));
        }
        let prefix = self.text(HISTORY, self.words_of(history - self.overhead).max(1));
        if !self.primed.contains(&cell.cached_tokens) {
            self.ask(&prefix).await?;
            self.primed.insert(cell.cached_tokens);
        }
        Ok(prefix + &self.fresh_tokens(uncached))
    }

    fn sample(&mut self, cell: Cell, answer: &Answer) -> Result<Sample, ProbeError> {
        if (answer.cached.as_f64()) < 0.75 * cell.cached_tokens as f64 {
            // The history was evicted in the meantime: the next cell that needs it primes it again.
            self.primed.remove(&cell.cached_tokens);
        }
        let prefill = self.prefill(answer)?;
        Ok(Sample {
            cached: answer.cached,
            uncached: answer.uncached,
            prefill,
            clock: self.clock,
            flops: None,
            bytes: None,
        })
    }

    /// Waits until the worker is idle. Returns its load.
    async fn be_polite(&self) -> Result<Option<Load>, SourceError> {
        let Some(patience) = self.polite else {
            return Ok(None);
        };
        let began = Instant::now();
        loop {
            let load = discover::load(&self.client).await?;
            if load.requests == 0.0 {
                return Ok(Some(load));
            }
            if began.elapsed() >= patience {
                return Err(SourceError::Busy(patience));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Returns whether requests of others have ended since `before`, or are in progress. `own` is the number of own
    /// requests that have ended since then.
    async fn others_since(&self, before: Option<Load>, own: f64) -> Result<bool, SourceError> {
        let Some(before) = before else {
            return Ok(false);
        };
        let mut now = discover::load(&self.client).await?;
        if now.requests > 0.0 {
            // It may be our own request, which the engine does not count as finished yet.
            tokio::time::sleep(LOOK).await;
            now = discover::load(&self.client).await?;
        }
        let ended = (before.finished.zip(now.finished)).is_some_and(|(before, now)| now > before + own);
        Ok(ended || now.requests > 0.0)
    }
}

impl Source for Worker {
    fn place(&self) -> &str {
        self.client.base()
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn measure(&mut self, cell: Cell) -> Result<Sample, SourceError> {
        for _ in 0..MOST_TRIES {
            // Checked before priming, which may send the longest prompt, and again before the timed prompt.
            self.be_polite().await?;
            let prompt = self.prompt(cell).await?;
            let before = self.be_polite().await?;
            let answer = self.ask(&prompt).await?;
            // Discard the time if requests of others overlapped.
            if !self.others_since(before, 1.0).await? {
                return Ok(self.sample(cell, &answer)?);
            }
        }
        Err(SourceError::Busy(self.polite.unwrap_or_default()))
    }
}
