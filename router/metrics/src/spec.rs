//! Rows of the table of metrics: name, type, unit, labels, and the largest number of series.

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only increases.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A distribution over these buckets.
    Histogram(&'static Buckets),
}

/// Buckets of a histogram.
#[derive(Debug, PartialEq)]
pub struct Buckets {
    /// Upper bounds, without infinity.
    pub bounds: &'static [f64],
    /// Whether buckets carry exemplars.
    pub exemplars: bool,
}

impl Eq for Buckets {}

/// Possible values of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Names of workers: [`MAX_WORKERS`] of them, and `other` for the rest.
    Worker,
    /// A fixed set.
    Of(&'static [&'static str]),
    /// Names from outside: their meaning and largest number. Further ones are counted under `other`.
    Named(&'static str, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub name: &'static str,
    pub values: Values,
}

/// A row of the table: a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name in Prometheus's spelling.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub labels: &'static [Label],
    pub help: &'static str,
    /// Name in OpenTelemetry's semantic conventions for generative AI, or the nearest one there.
    pub gen_ai: Option<&'static str>,
}

/// Workers with series of their own: the first ones of the configuration, and added ones while there is room.
pub const MAX_WORKERS: usize = 64;
/// Largest number of series of one router, whatever its fleet.
pub const MAX_SERIES: usize = 20_000;
/// Label value of the series for all values without a series of their own.
pub const OTHER: &str = protocol::names::OTHER;

/// Buckets of times to first token, from a cached short prompt to a minute in a queue.
pub const SECONDS: Buckets = Buckets {
    bounds: &[
        0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    ],
    exemplars: false,
};
/// Buckets of [`SECONDS`] with exemplars.
pub const TRACED_SECONDS: Buckets = Buckets {
    exemplars: true,
    ..SECONDS
};
/// Buckets of token counts.
pub const TOKENS: Buckets = Buckets {
    bounds: &[0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0],
    exemplars: false,
};

pub(super) const WORKER: Label = Label {
    name: "worker",
    values: Values::Worker,
};
pub(super) const KEY: Label = Label {
    name: "key",
    values: Values::Named(
        "a key's name, `anonymous` if no keys are configured, empty for requests without a key",
        100,
    ),
};
pub(super) const CLASS: Label = Label {
    name: "class",
    values: Values::Named("`default`, `header`, or a configured class of objectives", 20),
};

/// Returns a label with a fixed set of values.
pub(super) const fn of(name: &'static str, values: &'static [&'static str]) -> Label {
    Label {
        name,
        values: Values::Of(values),
    }
}

pub(super) const fn gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [Label],
    help: &'static str,
) -> Spec {
    Spec {
        name,
        kind: Kind::Gauge,
        unit,
        labels,
        help,
        gen_ai: None,
    }
}

/// Rows by topic.
pub type Table = &'static [(&'static str, &'static [Spec])];

impl Values {
    /// Returns the largest number of values, including `other`.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Self::Worker => MAX_WORKERS + 1,
            Self::Of(values) => values.len(),
            Self::Named(_, most) => most + 1,
        }
    }
}

impl Spec {
    /// Returns the largest number of series.
    #[must_use]
    pub fn most_series(&self) -> usize {
        let each = match self.kind {
            Kind::Counter | Kind::Gauge => 1,
            // The bounds, infinity, sum and count.
            Kind::Histogram(buckets) => buckets.bounds.len() + 3,
        };
        self.labels
            .iter()
            .fold(each, |series, label| series * label.values.most())
    }
}
