//! A bounded queue with fairness between flows.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): the request at the head of a flow f has the start tag
//!
//! ```text
//! S = max(v, F_f)    when the flow has just become busy,    S = F_f    while it stays busy
//! F_f = S + cost/weight    once it is served
//! ```
//!
//! and the least start tag is served next, where v is the start tag of the last request served. A flow that was idle
//! starts at v: it gains no credit and owes nothing. For two flows that stay busy, the service they receive, each
//! divided by its weight, differs by at most the cost of one request of each (the paper's theorem 1), at any rate of
//! service. WFQ would need the rate, and inference engines have an unknown speed.
//!
//! Only heads get tags: a request that leaves the queue unserved costs its flow nothing. Priority classes are strict.
//! Rejected: deficit round robin, where a flow waits a whole round of the others' quanta for its first request.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// A flow: a group of requests that competes for service with other groups, such as those of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(pub u64);

/// A request's position in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    class: i32,
    flow: Flow,
    sequence: u64,
}

/// The fair queue. The largest priority is served first.
#[derive(Debug)]
pub struct FairQueue<T> {
    classes: BTreeMap<Reverse<i32>, Class<T>>,
    len: usize,
    capacity: usize,
    sequence: u64,
}

#[derive(Debug)]
struct Class<T> {
    virtual_time: f64,
    flows: HashMap<Flow, Lane<T>>,
    /// The busy flows by the start tag of their heads; ties go to the earlier one.
    heads: BTreeSet<(Tag, u64, Flow)>,
}

#[derive(Debug)]
struct Lane<T> {
    /// The head's start tag if the flow is busy, else the finish tag of its last service.
    tag: f64,
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    sequence: u64,
    /// Cost over weight.
    share: f64,
    item: T,
}

/// A start tag: finite, so that it has a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tag(f64);

impl Eq for Tag {}

impl Ord for Tag {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Tag {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> FairQueue<T> {
    /// Creates an empty queue for at most `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        Self {
            classes: BTreeMap::new(),
            len: 0,
            capacity,
            sequence: 0,
        }
    }

    /// Sets another capacity; queued requests stay.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Enqueues a request. A `weight` or `cost` that is not positive is 1. Fails with the item if the queue is full.
    pub fn push(&mut self, flow: Flow, priority: i32, weight: f64, cost: f64, item: T) -> Result<Ticket, T> {
        if self.len >= self.capacity {
            return Err(item);
        }
        self.len += 1;
        self.sequence += 1;
        let sequence = self.sequence;
        let waiting = Waiting {
            sequence,
            share: positive(cost) / positive(weight),
            item,
        };
        let class = self.classes.entry(Reverse(priority)).or_insert_with(Class::empty);
        class.push(flow, waiting);
        debug_assert!(self.holds());
        Ok(Ticket {
            class: priority,
            flow,
            sequence,
        })
    }

    /// Returns the next request to be served.
    #[must_use]
    pub fn peek(&self) -> Option<(Ticket, &T)> {
        let (Reverse(priority), class) = self.classes.iter().next()?;
        let &(_, sequence, flow) = class.heads.first()?;
        let head = class.flows.get(&flow)?.waiting.front()?;
        let ticket = Ticket {
            class: *priority,
            flow,
            sequence,
        };
        Some((ticket, &head.item))
    }

    /// Serves the next request.
    pub fn pop(&mut self) -> Option<T> {
        let (ticket, _) = self.peek()?;
        self.leave(ticket, true)
    }

    /// Removes a request unserved, which costs its flow nothing. `None` if it is no longer queued.
    pub fn remove(&mut self, ticket: Ticket) -> Option<T> {
        self.leave(ticket, false)
    }

    fn leave(&mut self, ticket: Ticket, served: bool) -> Option<T> {
        let key = Reverse(ticket.class);
        let class = self.classes.get_mut(&key)?;
        let item = class.leave(ticket.flow, ticket.sequence, served)?;
        self.len -= 1;
        if class.heads.is_empty() {
            // No other flow is left, so earlier service creates no debt.
            self.classes.remove(&key);
        }
        debug_assert!(self.holds());
        Some(item)
    }

    /// Returns whether the internal structures are consistent. For tests.
    pub fn holds(&self) -> bool {
        let lanes = || self.classes.values().flat_map(|class| class.flows.values());
        let heads_agree = self.classes.values().all(|class| {
            class.heads.iter().all(|(tag, sequence, flow)| {
                let lane = class.flows.get(flow);
                lane.is_some_and(|lane| {
                    lane.tag == tag.0
                        && lane
                            .waiting
                            .front()
                            .is_some_and(|head| head.sequence == *sequence)
                })
            })
        });
        heads_agree
            && lanes().map(|lane| lane.waiting.len()).sum::<usize>() == self.len
            && lanes().filter(|lane| !lane.waiting.is_empty()).count()
                == self
                    .classes
                    .values()
                    .map(|class| class.heads.len())
                    .sum::<usize>()
    }
}

impl<T> Class<T> {
    fn empty() -> Self {
        Self {
            virtual_time: 0.0,
            flows: HashMap::new(),
            heads: BTreeSet::new(),
        }
    }

    fn push(&mut self, flow: Flow, waiting: Waiting<T>) {
        let virtual_time = self.virtual_time;
        let lane = self.flows.entry(flow).or_insert_with(|| Lane {
            tag: virtual_time,
            waiting: VecDeque::new(),
        });
        if lane.waiting.is_empty() {
            lane.tag = lane.tag.max(virtual_time);
            self.heads.insert((Tag(lane.tag), waiting.sequence, flow));
        }
        lane.waiting.push_back(waiting);
    }

    fn leave(&mut self, flow: Flow, sequence: u64, served: bool) -> Option<T> {
        let lane = self.flows.get_mut(&flow)?;
        let at = lane
            .waiting
            .binary_search_by_key(&sequence, |waiting| waiting.sequence)
            .ok()?;
        let left = lane.waiting.remove(at)?;
        if at == 0 {
            self.heads.remove(&(Tag(lane.tag), sequence, flow));
            if served {
                self.virtual_time = lane.tag;
                lane.tag += left.share;
            }
            if let Some(next) = lane.waiting.front() {
                self.heads.insert((Tag(lane.tag), next.sequence, flow));
            }
        }
        // An idle flow that is not ahead of the others needs no state.
        let virtual_time = self.virtual_time;
        self.flows
            .retain(|_, lane| !lane.waiting.is_empty() || lane.tag > virtual_time);
        Some(left.item)
    }
}

fn positive(number: f64) -> f64 {
    if number.is_finite() && number > 0.0 {
        number
    } else {
        1.0
    }
}
