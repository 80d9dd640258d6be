//! Metrics by label, bounded as their [rows](super::spec) say.
//!
//! A lookup hashes the label values, takes no lock and allocates nothing: each new series replaces the whole table. Values
//! that have no own series share the series `other`, and their lookups take a lock. A gauge does not expose `other`, since
//! the last of many values is not their sum.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::gauge;
use prometheus_client::metrics::histogram;
use rustc_hash::FxBuildHasher;

use super::spec::{Kind, MAX_WORKERS, OTHER, Spec, Values};
use protocol::names;
use telemetry::context::TraceId;

pub type Counter = counter::Counter;
pub(super) type RealCounter = counter::Counter<f64, AtomicU64>;
pub(super) type IntGauge = gauge::Gauge;
pub(super) type Gauge = gauge::Gauge<f64, AtomicU64>;

/// Remembered label values that map to another series, such as `other`.
const MAX_ALIASES: usize = 1 << 18;

/// Raises a counter to a total that another part of the router counts.
pub(super) fn raise(counter: &Counter, total: u64) {
    counter.inner().fetch_max(total, Ordering::Relaxed);
}

#[derive(Clone, Debug)]
pub(super) enum Histogram {
    Plain(histogram::Histogram),
    Traced(HistogramWithExemplars<TraceLabel>),
}

/// Workers that have series of their own, the same for every metric.
#[derive(Clone, Debug, Default)]
pub(super) struct Workers(Arc<KnownWorkers>);

#[derive(Debug, Default)]
struct KnownWorkers {
    names: Mutex<HashSet<String>>,
    /// Metrics that have a label for workers.
    metrics: Mutex<Vec<Weak<dyn ByWorker>>>,
}

trait ByWorker: fmt::Debug + Send + Sync {
    fn left(&self, worker: &str);
}

impl Workers {
    /// Returns whether a worker has series of its own. Admits it while there is room.
    pub(super) fn admit(&self, worker: &str) -> bool {
        let mut known = self.0.names.lock();
        if known.contains(worker) {
            return true;
        }
        known.len() < MAX_WORKERS && known.insert(worker.to_owned())
    }

    /// Removes the series of a worker that left the fleet, which frees room for another one.
    pub(super) fn left(&self, worker: &str) {
        for metric in self.0.metrics.lock().iter().filter_map(Weak::upgrade) {
            metric.left(worker);
        }
        self.0.names.lock().remove(worker);
    }
}

/// A metric that can have labels.
pub trait Made: Clone + fmt::Debug + Send + Sync + EncodeMetric + 'static {
    /// Creates a metric at zero.
    fn made(spec: &Spec) -> Self;
    /// Type on the metrics page.
    const TYPE: MetricType;
}

impl Made for Counter {
    const TYPE: MetricType = MetricType::Counter;

    fn made(_: &Spec) -> Self {
        Self::default()
    }
}

impl Made for RealCounter {
    const TYPE: MetricType = MetricType::Counter;

    fn made(_: &Spec) -> Self {
        Self::default()
    }
}

impl Made for IntGauge {
    const TYPE: MetricType = MetricType::Gauge;

    fn made(_: &Spec) -> Self {
        Self::default()
    }
}

impl Made for Gauge {
    const TYPE: MetricType = MetricType::Gauge;

    fn made(_: &Spec) -> Self {
        Self::default()
    }
}

impl Made for Histogram {
    const TYPE: MetricType = MetricType::Histogram;

    fn made(spec: &Spec) -> Self {
        let (bounds, traced) = match spec.kind {
            Kind::Histogram(buckets) => (buckets.bounds, buckets.exemplars),
            Kind::Counter | Kind::Gauge => (&[][..], false),
        };
        let bounds = bounds.iter().copied();
        if traced {
            Self::Traced(HistogramWithExemplars::new(bounds))
        } else {
            Self::Plain(histogram::Histogram::new(bounds))
        }
    }
}

impl Histogram {
    pub(super) fn observe(&self, value: f64) {
        self.observe_of(value, None);
    }

    /// Records a value, with the trace of its request if the metric has exemplars.
    pub(super) fn observe_of(&self, value: f64, trace: Option<TraceId>) {
        match self {
            Self::Plain(plain) => plain.observe(value),
            Self::Traced(traced) => traced.observe(value, trace.map(TraceLabel), None),
        }
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Plain(plain) => plain.encode(encoder),
            Self::Traced(traced) => traced.encode(encoder),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TraceLabel(TraceId);

impl EncodeLabelSet for TraceLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("trace_id", self.0.as_str())].encode(encoder)
    }
}

/// A metric by its label values.
#[derive(Debug)]
pub struct Labelled<M> {
    shared: Arc<Shared<M>>,
}

impl<M> Clone for Labelled<M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[derive(Debug)]
struct Shared<M> {
    spec: &'static Spec,
    workers: Workers,
    /// Exposed series by their values.
    own: ArcSwap<ByValues<M>>,
    series: RwLock<Series<M>>,
}

/// Series by the hash of the requested values, with these values.
type ByValues<M> = HashMap<u64, Arc<(Box<[Box<str>]>, M)>, FxBuildHasher>;

#[derive(Debug)]
struct Series<M> {
    /// Series of values that have none of their own.
    aliases: ByValues<M>,
    /// Exposed series, in the order of the page.
    shown: BTreeMap<Vec<String>, M>,
    /// Values seen so far of each label with open values.
    names: Vec<HashSet<String>>,
}

/// Mapping of requested label values to a series.
enum Folded {
    /// The values have a series of their own.
    Not,
    /// Some values map to `other`. `is_bounded` says whether the mapping may be remembered.
    Into { is_bounded: bool },
}

impl<M: Made> Labelled<M> {
    pub(super) fn new(spec: &'static Spec, workers: Workers) -> Self {
        let series = RwLock::new(Series {
            aliases: HashMap::default(),
            shown: BTreeMap::new(),
            names: vec![HashSet::new(); spec.labels.len()],
        });
        let shared = Arc::new(Shared {
            spec,
            workers: workers.clone(),
            own: ArcSwap::default(),
            series,
        });
        if shared.worker_label().is_some() {
            let metric: Arc<dyn ByWorker> = Arc::<Shared<M>>::clone(&shared);
            workers.0.metrics.lock().push(Arc::downgrade(&metric));
        }
        Self { shared }
    }

    /// Returns the series with these values, one for each label, and exposes it from now on.
    pub fn with_label_values(&self, values: &[&str]) -> M {
        self.with(values, M::clone)
    }

    /// Uses the series with these values, one for each label, and exposes it from now on.
    #[inline]
    fn with<T>(&self, values: &[&str], use_metric: impl FnOnce(&M) -> T) -> T {
        let key = hash(values);
        if let Some(metric) = find(&self.shared.own.load(), key, values) {
            return use_metric(metric);
        }
        use_metric(&self.other(key, values))
    }

    /// Returns the series of values that have none of their own, or that are requested for the first time.
    #[cold]
    fn other(&self, key: u64, values: &[&str]) -> M {
        let alias = find(&self.shared.series.read().aliases, key, values).cloned();
        alias.unwrap_or_else(|| self.first(key, values))
    }

    /// Adds the series on the first request for these values.
    fn first(&self, key: u64, values: &[&str]) -> M {
        let Shared { spec, workers, .. } = &*self.shared;
        debug_assert_eq!(values.len(), spec.labels.len(), "{} {values:?}", spec.name);
        let mut series = self.shared.series.write();
        let (own, folded) = own(spec, workers, &mut series.names, values);
        let metric = match folded {
            // Not exposed.
            Folded::Into { .. } if spec.kind == Kind::Gauge => M::made(spec),
            _ => series.shown.entry(own).or_insert_with(|| M::made(spec)).clone(),
        };
        // Two sets of values with the same hash replace each other.
        let entry = || {
            Arc::new((
                values.iter().map(|value| Box::from(*value)).collect(),
                metric.clone(),
            ))
        };
        match folded {
            Folded::Not => self.shared.change_own(|own| _ = own.insert(key, entry())),
            Folded::Into { is_bounded: true } if series.aliases.len() < MAX_ALIASES => {
                series.aliases.insert(key, entry());
            }
            Folded::Into { .. } => {}
        }
        metric
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shared.series.read().shown.len()
    }
}

impl Labelled<Counter> {
    pub(super) fn inc(&self, values: &[&str]) {
        self.add(values, 1);
    }

    pub(super) fn add(&self, values: &[&str], more: u64) {
        self.with(values, |counter| counter.inc_by(more));
    }

    pub(super) fn get(&self, values: &[&str]) -> u64 {
        self.with(values, Counter::get)
    }
}

impl Labelled<RealCounter> {
    pub(super) fn add(&self, values: &[&str], more: f64) {
        self.with(values, |counter| counter.inc_by(more));
    }
}

impl Labelled<IntGauge> {
    pub(super) fn set(&self, values: &[&str], value: i64) {
        self.with(values, |gauge| gauge.set(value));
    }
}

impl Labelled<Gauge> {
    pub(super) fn set(&self, values: &[&str], value: f64) {
        self.with(values, |gauge| gauge.set(value));
    }
}

impl Labelled<Histogram> {
    pub(super) fn observe(&self, values: &[&str], value: f64) {
        self.with(values, |histogram| histogram.observe(value));
    }

    /// Records a value with the trace of its request.
    pub(super) fn observe_of(&self, values: &[&str], value: f64, trace: Option<TraceId>) {
        self.with(values, |histogram| histogram.observe_of(value, trace));
    }
}

impl<M> Shared<M> {
    /// Changes the table of series by their values. Callers hold the lock of `series`.
    fn change_own(&self, change: impl FnOnce(&mut ByValues<M>)) {
        let mut own = ByValues::clone(&self.own.load());
        change(&mut own);
        self.own.store(Arc::new(own));
    }

    fn worker_label(&self) -> Option<usize> {
        let mut labels = self.spec.labels.iter();
        labels.position(|label| matches!(label.values, Values::Worker))
    }
}

impl<M: Made> ByWorker for Shared<M> {
    fn left(&self, worker: &str) {
        let Some(at) = self.worker_label() else {
            return;
        };
        let mut series = self.series.write();
        self.change_own(|own| own.retain(|_, series| &*series.0[at] != worker));
        series.aliases.retain(|_, series| &*series.0[at] != worker);
        series.shown.retain(|values, _| values[at] != worker);
    }
}

/// Returns the values of the series in which these values are counted, and how they map to it.
fn own(
    spec: &Spec,
    workers: &Workers,
    names: &mut [HashSet<String>],
    values: &[&str],
) -> (Vec<String>, Folded) {
    let mut folded = Folded::Not;
    let labels = spec.labels.iter().zip(values).zip(names);
    let own = labels.map(|((label, value), names)| {
        let (has_own, is_bounded) = match label.values {
            _ if value.len() > names::MAX_BYTES => (false, false),
            Values::Worker => (workers.admit(value), true),
            Values::Of(known) => {
                let is_known = known.contains(value);
                debug_assert!(
                    is_known,
                    "{}: {}={value} is not in the table",
                    spec.name, label.name
                );
                (is_known, false)
            }
            Values::Named(_, most) => {
                let has_place = names.contains(*value) || names.len() < most;
                if has_place && *value != OTHER {
                    names.insert((*value).to_owned());
                }
                // `other` itself takes no place.
                (has_place || *value == OTHER, false)
            }
        };
        if has_own {
            return (*value).to_owned();
        }
        let all = !matches!(folded, Folded::Into { is_bounded: false });
        folded = Folded::Into {
            is_bounded: is_bounded && all,
        };
        OTHER.to_owned()
    });
    (own.collect(), folded)
}

fn find<'a, M>(series: &'a ByValues<M>, key: u64, values: &[&str]) -> Option<&'a M> {
    let (known, metric) = &**series.get(&key)?;
    let is_same =
        known.len() == values.len() && known.iter().zip(values).all(|(known, value)| **known == **value);
    is_same.then_some(metric)
}

fn hash(values: &[&str]) -> u64 {
    FxBuildHasher.hash_one(values)
}

impl<M: Made> EncodeMetric for Labelled<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let names = self.shared.spec.labels;
        for (values, metric) in &self.shared.series.read().shown {
            if names.is_empty() {
                metric.encode(encoder)?;
                return Ok(());
            }
            let labels: Vec<(&str, &str)> = names
                .iter()
                .map(|label| label.name)
                .zip(values.iter().map(String::as_str))
                .collect();
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.shared.series.read().shown.is_empty()
    }
}
