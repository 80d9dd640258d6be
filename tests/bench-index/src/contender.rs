//! One face for every structure: apply events, answer questions, forget a worker.

use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits, IndexReader, Reach};

use crate::WORKERS;
use crate::clock::{Spent, timed};
use crate::workload::{Event, Question, Workload};

pub trait Contender {
    fn name(&self) -> &'static str;
    /// Applies the events.
    fn apply_all(&mut self, workload: &Workload, events: &[Event]) -> Spent;
    /// Takes the question in, outside the time measured.
    fn prepare(&mut self, question: &Question);
    /// The lookup that is timed.
    fn ask(&mut self);
    /// The last answer: leading blocks by worker.
    fn answer(&self, scores: &mut [u32]);
    /// Forgets a worker.
    fn remove_worker(&mut self, worker: u32) -> Spent;
    /// Does all that forgetting left to later writes, where it leaves anything.
    fn reclaim(&mut self) -> Option<Spent> {
        None
    }
}

pub struct Tailroute {
    index: Index,
    reader: IndexReader,
    chain: Vec<PrefixHash>,
    reach: Reach,
}

impl Tailroute {
    pub fn boxed() -> Box<dyn Contender> {
        let index = Index::new(IndexLimits::default());
        let reader = index.reader();
        Box::new(Self { index, reader, chain: Vec::new(), reach: Reach::new() })
    }
}

impl Contender for Tailroute {
    fn name(&self) -> &'static str {
        "tailroute"
    }

    fn apply_all(&mut self, workload: &Workload, events: &[Event]) -> Spent {
        // Converted a thousand at a time, so that only the index is timed.
        events.chunks(1000).map(|events| {
            let mut hashes = Vec::new();
            let calls: Vec<_> = events.iter().map(|event| match *event {
                Event::Store { worker, chain, from, to } => {
                    let links = &workload.chains[chain as usize].links;
                    let at = hashes.len();
                    hashes.extend(links[from as usize..to as usize].iter().map(|link| PrefixHash(*link)));
                    let parent = from.checked_sub(1).map(|at| PrefixHash(links[at as usize]));
                    (WorkerId(worker), parent, Some(at..hashes.len()))
                }
                Event::Remove { worker, chain, at } => {
                    let link = workload.chains[chain as usize].links[at as usize];
                    (WorkerId(worker), Some(PrefixHash(link)), None)
                }
            }).collect();
            timed(|| {
                for (worker, key, stored) in calls {
                    match (stored, key) {
                        (Some(range), parent) => {
                            self.index.store_after(worker, parent, &hashes[range]).expect("a held parent");
                        }
                        (None, Some(key)) => {
                            self.index.remove(worker, key);
                        }
                        (None, None) => {}
                    }
                }
            })
        }).sum()
    }

    fn prepare(&mut self, question: &Question) {
        self.chain.clear();
        self.chain.extend(question.links.iter().map(|link| PrefixHash(*link)));
    }

    fn ask(&mut self) {
        self.reader.lookup(&self.chain, &mut self.reach);
    }

    fn answer(&self, scores: &mut [u32]) {
        for (worker, score) in (0..).zip(scores) {
            *score = self.reach.of(WorkerId(worker));
        }
    }

    fn remove_worker(&mut self, worker: u32) -> Spent {
        timed(|| {
            self.index.forget(WorkerId(worker));
        })
    }

    fn reclaim(&mut self) -> Option<Spent> {
        Some(timed(|| {
            self.index.tidy(u64::MAX);
        }))
    }
}

pub struct SmgChain {
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
    content: Vec<ContentHash>,
    scores: Vec<u32>,
}

impl SmgChain {
    pub fn boxed() -> Box<dyn Contender> {
        let index = ChainIndex::new();
        for worker in 0..WORKERS {
            let id = index.intern_worker(&format!("worker-{worker}")).expect("room for a worker");
            assert_eq!(id, worker);
        }
        let maps = (0..WORKERS).map(|_| ChainBlockMap::default()).collect();
        Box::new(Self { index, maps, content: Vec::new(), scores: vec![0; WORKERS as usize] })
    }
}

impl Contender for SmgChain {
    fn name(&self) -> &'static str {
        "kv-index ChainIndex"
    }

    fn apply_all(&mut self, workload: &Workload, events: &[Event]) -> Spent {
        events.chunks(1000).map(|events| {
            let mut blocks = Vec::new();
            let calls: Vec<_> = events.iter().map(|event| match *event {
                Event::Store { worker, chain, from, to } => {
                    let chain = &workload.chains[chain as usize];
                    let start = blocks.len();
                    blocks.extend((from as usize..to as usize).map(|at| StoredBlock {
                        seq_hash: SequenceHash(chain.links[at]),
                        content_hash: ContentHash(chain.content[at]),
                    }));
                    let parent = from.checked_sub(1).map(|at| SequenceHash(chain.links[at as usize]));
                    (worker, parent, Some(start..blocks.len()))
                }
                Event::Remove { worker, chain, at } => {
                    (worker, Some(SequenceHash(workload.chains[chain as usize].links[at as usize])), None)
                }
            }).collect();
            timed(|| {
                for (worker, key, stored) in calls {
                    let map = &mut self.maps[worker as usize];
                    match (stored, key) {
                        (Some(range), parent) => {
                            self.index.apply_stored(worker, &blocks[range], parent, map).expect("a held parent");
                        }
                        (None, Some(key)) => self.index.apply_removed(worker, &[key], map),
                        (None, None) => {}
                    }
                }
            })
        }).sum()
    }

    fn prepare(&mut self, question: &Question) {
        self.content.clear();
        self.content.extend(question.content.iter().map(|content| ContentHash(*content)));
    }

    fn ask(&mut self) {
        let scores = &mut self.scores;
        scores.fill(0);
        self.index.score_into(&self.content, |content| content.0, false, |worker, score| {
            scores[worker as usize] = score;
        });
    }

    fn answer(&self, scores: &mut [u32]) {
        scores.copy_from_slice(&self.scores);
    }

    fn remove_worker(&mut self, worker: u32) -> Spent {
        let map = std::mem::take(&mut self.maps[worker as usize]);
        timed(|| self.index.remove_worker(worker, map))
    }
}

pub struct DynamoRadix {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    thread: Option<JoinHandle<()>>,
    content: Vec<LocalBlockHash>,
    found: OverlapScores,
    events: u64,
}

impl DynamoRadix {
    pub fn boxed() -> Box<dyn Contender> {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (tasks, receiver) = flume::unbounded();
        let worker = Arc::clone(&tree);
        let thread = Some(std::thread::spawn(move || worker.worker(receiver, None).expect("the event loop")));
        Box::new(Self { tree, tasks, thread, content: Vec::new(), found: OverlapScores::new(), events: 0 })
    }

    fn event(&mut self, worker: u32, data: KvCacheEventData) -> RouterEvent {
        self.events += 1;
        RouterEvent::new(u64::from(worker), KvCacheEvent { event_id: self.events, data, dp_rank: 0 })
    }

    fn convert(&mut self, workload: &Workload, event: Event) -> RouterEvent {
        match event {
            Event::Store { worker, chain, from, to } => {
                let chain = &workload.chains[chain as usize];
                let blocks = (from as usize..to as usize).map(|at| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(chain.links[at]),
                    tokens_hash: LocalBlockHash(chain.content[at]),
                    mm_extra_info: None,
                });
                let parent_hash = from.checked_sub(1).map(|at| ExternalSequenceBlockHash(chain.links[at as usize]));
                let data = KvCacheStoreData { parent_hash, start_position: None, blocks: blocks.collect() };
                self.event(worker, KvCacheEventData::Stored(data))
            }
            Event::Remove { worker, chain, at } => {
                let link = workload.chains[chain as usize].links[at as usize];
                let data = KvCacheRemoveData { block_hashes: vec![ExternalSequenceBlockHash(link)] };
                self.event(worker, KvCacheEventData::Removed(data))
            }
        }
    }

    /// Sends tasks and waits until the event loop is through with them.
    fn process(&self, tasks: Vec<WorkerTask>) -> Spent {
        let (done, wait) = tokio::sync::oneshot::channel();
        timed(|| {
            for task in tasks {
                self.tasks.send(task).expect("the event loop runs");
            }
            self.tasks.send(WorkerTask::Flush(done)).expect("the event loop runs");
            wait.blocking_recv().expect("an answer");
        })
    }
}

impl Contender for DynamoRadix {
    fn name(&self) -> &'static str {
        "dynamo compressed radix"
    }

    fn apply_all(&mut self, workload: &Workload, events: &[Event]) -> Spent {
        events.chunks(1000).map(|events| {
            let tasks = events.iter().map(|event| WorkerTask::Event(self.convert(workload, *event))).collect();
            self.process(tasks)
        }).sum()
    }

    fn prepare(&mut self, question: &Question) {
        self.content.clear();
        self.content.extend(question.content.iter().map(|content| LocalBlockHash(*content)));
    }

    fn ask(&mut self) {
        self.found = self.tree.find_matches(&self.content, false);
    }

    fn answer(&self, scores: &mut [u32]) {
        scores.fill(0);
        for (worker, score) in &self.found.scores {
            scores[worker.worker_id as usize] = *score;
        }
    }

    fn remove_worker(&mut self, worker: u32) -> Spent {
        let (resp, _wait) = tokio::sync::oneshot::channel();
        self.process(vec![WorkerTask::RemoveWorker { worker_id: u64::from(worker), sweep_tree: true, resp }])
    }
}

impl Drop for DynamoRadix {
    fn drop(&mut self) {
        let _ = self.tasks.send(WorkerTask::Terminate);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
