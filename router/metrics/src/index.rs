use super::clamp;
use super::labelled::{Counter, IntGauge, Labelled, raise};
use super::page::Gauges;
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, gauge, of};

pub(super) const TABLE: &[Spec] = &[
    gauge(
        "tailroute_index_keys",
        "keys",
        &[],
        "Keys of prefixes in the index.",
    ),
    gauge(
        "tailroute_index_entries",
        "entries",
        &[],
        "Entries of the index: a key once for each worker that holds its prefix.",
    ),
    gauge("tailroute_index_bytes", "bytes", &[], "Memory of the index."),
    Spec {
        name: "tailroute_index_refused_total",
        kind: Kind::Counter,
        unit: "prefixes",
        labels: &[of("why", &["unknown_parent", "conflict", "too_long"])],
        help: "Prefixes that the index refused: the parent was evicted (unknown_parent), the key already names another \
            prefix (conflict), or the prefix is longer than the index allows (too_long).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_index_incomplete_lookups_total",
        kind: Kind::Counter,
        unit: "lookups",
        labels: &[],
        help: "Lookups that ended early because the index was being changed.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_index_evicted_keys_total",
        kind: Kind::Counter,
        unit: "keys",
        labels: &[],
        help: "Keys evicted because the index was full.",
        gen_ai: None,
    },
];

#[derive(Debug)]
pub(super) struct Index {
    keys: IntGauge,
    entries: IntGauge,
    bytes: IntGauge,
    refused: Labelled<Counter>,
    incomplete: Counter,
    evicted: Counter,
}

impl Index {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            keys: metrics.single("tailroute_index_keys")?,
            entries: metrics.single("tailroute_index_entries")?,
            bytes: metrics.single("tailroute_index_bytes")?,
            refused: metrics.labelled("tailroute_index_refused_total")?,
            incomplete: metrics.single("tailroute_index_incomplete_lookups_total")?,
            evicted: metrics.single("tailroute_index_evicted_keys_total")?,
        })
    }

    pub(super) fn set(&self, gauges: &Gauges) {
        let stats = gauges.index;
        self.keys.set(clamp(stats.keys));
        self.entries.set(clamp(stats.entries));
        self.bytes.set(clamp(stats.bytes));
        raise(&self.evicted, stats.evicted_keys);
        let (refused, incomplete) = gauges.losses;
        raise(&self.incomplete, incomplete);
        for (why, total) in [
            ("unknown_parent", refused.unknown_parents),
            ("conflict", refused.conflicts),
            ("too_long", refused.too_long),
        ] {
            raise(&self.refused.with_label_values(&[why]), total);
        }
    }
}
