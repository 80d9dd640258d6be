//! The events and the questions, the same for every contender and every run.

use std::collections::{BTreeMap, HashMap};

use kv_index::{ContentHash, request_prefix_hashes};

const PROMPTS: usize = 16;
const PROMPT_BLOCKS: usize = 32;
const ACTIVE: usize = 400;

/// A conversation's blocks, the shared prompt's first: by content, and as a chain.
pub struct Chain {
    pub content: Vec<u64>,
    pub links: Vec<u64>,
    home: u32,
    said: usize,
}

#[derive(Clone, Copy)]
pub enum Event {
    /// `worker` stores blocks `from..to` of a chain, all before being held already.
    Store { worker: u32, chain: u32, from: u32, to: u32 },
    /// `worker` drops one block, as engines report it.
    Remove { worker: u32, chain: u32, at: u32 },
}

pub fn blocks(events: &[Event]) -> u64 {
    events.iter().map(|event| match event {
        Event::Store { from, to, .. } => u64::from(to - from),
        Event::Remove { .. } => 1,
    }).sum()
}

pub struct Question {
    pub content: Vec<u64>,
    pub links: Vec<u64>,
}

pub struct Rng(u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

pub struct Workload {
    pub chains: Vec<Chain>,
    rng: Rng,
    workers: u32,
    target: u64,
    entries: u64,
    active: Vec<u32>,
    prompts: Vec<Vec<u64>>,
    prompt_held: Vec<Vec<bool>>,
    /// (worker, chain) → blocks held and when last used.
    held: HashMap<(u32, u32), (u32, u64)>,
    by_use: BTreeMap<u64, (u32, u32)>,
    clock: u64,
}

impl Workload {
    pub fn new(workers: u32, target: u64, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let prompts = (0..PROMPTS).map(|_| (0..PROMPT_BLOCKS).map(|_| rng.next()).collect()).collect();
        let mut workload = Self {
            chains: Vec::new(),
            rng,
            workers,
            target,
            entries: 0,
            active: Vec::new(),
            prompts,
            prompt_held: vec![vec![false; workers as usize]; PROMPTS],
            held: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
        };
        for _ in 0..ACTIVE {
            let chain = workload.begin();
            workload.active.push(chain);
        }
        workload
    }

    pub fn entries(&self) -> u64 {
        self.entries
    }

    fn begin(&mut self) -> u32 {
        let prompt = self.chains.len() % PROMPTS;
        let blocks = if self.rng.below(5) == 0 { 512 } else { 64 + self.rng.below(449) };
        let mut content = self.prompts[prompt].clone();
        content.extend((PROMPT_BLOCKS..blocks).map(|_| self.rng.next()));
        let hashes: Vec<ContentHash> = content.iter().map(|content| ContentHash(*content)).collect();
        let links = request_prefix_hashes(&hashes).into_iter().map(|link| link.0).collect();
        let home = self.rng.below(self.workers as usize) as u32;
        self.chains.push(Chain { content, links, home, said: PROMPT_BLOCKS });
        self.chains.len() as u32 - 1
    }

    fn turn(&mut self, events: &mut Vec<Event>) -> u64 {
        let slot = self.rng.below(self.active.len());
        let id = self.active[slot];
        let grow = 8 + self.rng.below(33);
        let moves = self.rng.below(10) == 0;
        let other = self.rng.below(self.workers as usize) as u32;
        let chain = &mut self.chains[id as usize];
        if moves {
            chain.home = other;
        }
        chain.said = (chain.said + grow).min(chain.content.len());
        let (worker, to) = (chain.home, chain.said as u32);
        let over = chain.said == chain.content.len();
        let prompt = id as usize % PROMPTS;
        self.clock += 1;
        let (mut from, used) = self.held.get(&(worker, id)).copied().unwrap_or((0, 0));
        if from > 0 {
            self.by_use.remove(&used);
        } else if std::mem::replace(&mut self.prompt_held[prompt][worker as usize], true) {
            from = PROMPT_BLOCKS as u32;
        }
        events.push(Event::Store { worker, chain: id, from, to });
        self.held.insert((worker, id), (to, self.clock));
        self.by_use.insert(self.clock, (worker, id));
        self.entries += u64::from(to - from);
        if over {
            self.active[slot] = self.begin();
        }
        u64::from(to - from)
    }

    /// Turns until the target number of entries is held.
    pub fn build(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.entries < self.target {
            self.turn(&mut events);
        }
        events
    }

    /// Turns until the target was stored `turnovers` times more, the least recently used copies going, end first.
    pub fn churn(&mut self, turnovers: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let mut stored = 0;
        while stored < turnovers * self.target {
            stored += self.turn(&mut events);
            while self.entries > self.target {
                let Some((_, (worker, chain))) = self.by_use.pop_first() else { break };
                let Some((held, _)) = self.held.remove(&(worker, chain)) else { break };
                for at in (PROMPT_BLOCKS as u32..held).rev() {
                    events.push(Event::Remove { worker, chain, at });
                }
                self.entries -= u64::from(held) - PROMPT_BLOCKS as u64;
            }
        }
        events
    }

    /// The end of what each of these workers holds goes, block by block, until they dropped so many.
    pub fn drain(&self, workers: std::ops::Range<u32>, blocks: usize) -> Vec<Event> {
        let copies = self.by_use.values().filter(|(worker, _)| workers.contains(worker));
        let removals = copies.flat_map(|copy| {
            let (worker, chain) = *copy;
            let held = self.held.get(copy).map_or(0, |(held, _)| *held);
            (PROMPT_BLOCKS as u32..held).rev().map(move |at| Event::Remove { worker, chain, at })
        });
        removals.take(blocks).collect()
    }

    /// The cases, each with its questions about chains that are held now.
    pub fn questions(&self, count: usize) -> Vec<(&'static str, Vec<Question>)> {
        let mut rng = Rng(99);
        let mut depth: BTreeMap<u32, u32> = BTreeMap::new();
        for ((_, chain), (held, _)) in &self.held {
            let deepest = depth.entry(*chain).or_default();
            *deepest = (*deepest).max(*held);
        }
        let at_least = |blocks: u32| -> Vec<u32> {
            depth.iter().filter(|(_, held)| **held >= blocks).map(|(chain, _)| *chain).collect()
        };
        let (medium, long) = (at_least(128), at_least(512));
        let of = |chain: u32, blocks: usize, new: usize, rng: &mut Rng| {
            let chain = &self.chains[chain as usize];
            let mut question = Question {
                content: chain.content[..blocks].to_vec(),
                links: chain.links[..blocks].to_vec(),
            };
            for _ in 0..new {
                question.content.push(rng.next());
                question.links.push(rng.next());
            }
            question
        };
        let mut case = |chains: &[u32], blocks: usize, new: usize| -> Vec<Question> {
            (0..count).map(|_| {
                let chain = chains[rng.below(chains.len())];
                of(chain, blocks, new, &mut rng)
            }).collect()
        };
        vec![
            ("shared 32", case(&medium, 32, 0)),
            ("depth 128", case(&medium, 128, 0)),
            ("depth 512", case(&long, 512, 0)),
            ("512 + 32 new", case(&long, 512, 32)),
            ("miss", case(&medium, 0, 64)),
        ]
    }
}
