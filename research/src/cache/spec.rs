//! Policies by name.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::belady::Belady;
use super::end_aware::EndAware;
use super::et_lru::{EtLru, EtLruOptions, Hazards};
use super::flop_aware::{FlopAware, FlopAwareOptions};
use super::gdfs::Gdfs;
use super::length_aware::LengthAware;
use super::lru::Lru;
use super::t_lru::TLru;
use super::t_lru_printed::TLruPrinted;
use super::t_lru_trim_all::TLruTrimAll;
use super::threshold_lru::{LongEnough, ThresholdLru};
use super::tiers::{Tier, TierStack};
use super::to_belady::ToBelady;
use super::workload_aware::WorkloadAware;
use super::{CacheConfig, CachePolicy};
use policy::cost::PrefillCost;
use policy::units::Tokens;

/// A policy and its own parameters, as written on a command line: `t-lru`, `threshold-lru:512`.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicySpec {
    /// Least recently used.
    Lru,
    /// LRU from a minimum length on; 1,024 tokens unless given as `threshold-lru:N`.
    ThresholdLru(Tokens),
    /// Tail-Optimized LRU.
    TLru,
    /// Tail-Optimized LRU as printed.
    TLruPrinted,
    /// T-LRU that trims all free tokens on overflow.
    TLruTrimAll,
    /// T-LRU with foresight of last turns.
    EndAware,
    /// T-LRU with foresight of last turns and of next prompt lengths.
    LengthAware,
    /// Expected-Tail-Optimized LRU; options as `et-lru:eps=0.1:decay=0.002:hazards=turn-class`, μ per second.
    EtLru(EtLruOptions),
    /// Lowest probability of reuse in its class.
    WorkloadAware,
    /// Greedy-Dual-Frequency-Size; the ratio of attention to linear cost as `gdfs:1e-5`, else 0.
    Gdfs(f64),
    /// Hybrid models: recency plus FLOPs saved per byte; a fixed weight as `flop-aware:W`, else tuned.
    FlopAware(FlopAwareOptions),
    /// T-LRU over a stack; lower tiers as `t-lru-tiers:CAPACITY/MS_PER_TOKEN/UNIT:…`.
    Tiers(Vec<Tier>),
    /// Furthest in future.
    Belady,
    /// Furthest in future, within TEL-safe budgets.
    ToBelady,
}

/// An unknown policy name, or an invalid parameter.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{name}` is not a cache policy; there are {}", PolicySpec::NAMES.join(", "))]
pub struct UnknownPolicy {
    pub name: String,
}

impl PolicySpec {
    pub const NAMES: &[&str] = &[
        "lru",
        "threshold-lru",
        "t-lru",
        "t-lru-printed",
        "t-lru-trim-all",
        "end-aware",
        "length-aware",
        "et-lru",
        "workload-aware",
        "gdfs",
        "flop-aware",
        "t-lru-tiers",
        "belady",
        "to-belady",
    ];

    /// Creates an empty cache under this policy.
    pub fn build(&self, config: CacheConfig) -> Box<dyn CachePolicy> {
        match self {
            Self::Lru => Box::new(Lru::new(config)),
            Self::ThresholdLru(threshold) => {
                Box::new(ThresholdLru::with_rule(config, LongEnough(*threshold)))
            }
            Self::TLru => Box::new(TLru::new(config)),
            Self::TLruPrinted => Box::new(TLruPrinted::new(config)),
            Self::TLruTrimAll => Box::new(TLruTrimAll::new(config)),
            Self::EndAware => Box::new(EndAware::new(config)),
            Self::LengthAware => Box::new(LengthAware::new(config)),
            Self::EtLru(options) => Box::new(EtLru::new(config, options.clone())),
            Self::WorkloadAware => Box::new(WorkloadAware::new(config)),
            Self::Gdfs(attention) => Box::new(Gdfs::new(config, gdfs_cost(*attention))),
            Self::FlopAware(options) => Box::new(FlopAware::new(config, *options)),
            Self::Tiers(lower) => Box::new(TierStack::new(config, lower)),
            Self::Belady => Box::new(Belady::new(config)),
            Self::ToBelady => Box::new(ToBelady::new(config)),
        }
    }

    /// Returns whether the policy needs the future of conversations.
    pub fn needs_future(&self) -> bool {
        matches!(
            self,
            Self::EndAware | Self::LengthAware | Self::Belady | Self::ToBelady
        )
    }
}

impl PolicySpec {
    /// Returns whether, on shared blocks, the policy needs the next use of each block.
    pub fn needs_foresight(&self) -> bool {
        matches!(self, Self::Belady | Self::ToBelady)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lru => f.write_str("lru"),
            Self::ThresholdLru(Tokens(1024)) => f.write_str("threshold-lru"),
            Self::ThresholdLru(threshold) => write!(f, "threshold-lru:{}", threshold.0),
            Self::TLru => f.write_str("t-lru"),
            Self::TLruPrinted => f.write_str("t-lru-printed"),
            Self::TLruTrimAll => f.write_str("t-lru-trim-all"),
            Self::EndAware => f.write_str("end-aware"),
            Self::LengthAware => f.write_str("length-aware"),
            Self::EtLru(options) => write_et_lru(options, f),
            Self::WorkloadAware => f.write_str("workload-aware"),
            Self::Gdfs(attention) if *attention > 0.0 => write!(f, "gdfs:{attention}"),
            Self::Gdfs(_) => f.write_str("gdfs"),
            Self::FlopAware(FlopAwareOptions {
                weight: Some(weight), ..
            }) => write!(f, "flop-aware:{weight}"),
            Self::FlopAware(_) => f.write_str("flop-aware"),
            Self::Tiers(lower) => {
                f.write_str("t-lru-tiers")?;
                let one =
                    |tier: &Tier| format!("{}/{}/{}", tier.capacity.0, tier.ms_per_token, tier.unit_tokens);
                lower.iter().try_for_each(|tier| write!(f, ":{}", one(tier)))
            }
            Self::Belady => f.write_str("belady"),
            Self::ToBelady => f.write_str("to-belady"),
        }
    }
}

impl FromStr for PolicySpec {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy {
            name: text.to_owned(),
        };
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };
        let spec = match (name, parameter) {
            ("threshold-lru", Some(threshold)) => {
                return threshold
                    .parse()
                    .map(|tokens| Self::ThresholdLru(Tokens(tokens)))
                    .map_err(|_| unknown());
            }
            ("et-lru", options) => return parse_et_lru(options).map(Self::EtLru).ok_or_else(unknown),
            ("gdfs", Some(attention)) => {
                return positive(attention).map(Self::Gdfs).ok_or_else(unknown);
            }
            ("flop-aware", Some(weight)) => {
                let weight = Some(positive(weight).ok_or_else(unknown)?);
                return Ok(Self::FlopAware(FlopAwareOptions {
                    weight,
                    ..FlopAwareOptions::default()
                }));
            }
            ("t-lru-tiers", Some(lower)) => {
                let tiers = lower.split(':').map(parse_tier).collect::<Option<_>>();
                return tiers.map(Self::Tiers).ok_or_else(unknown);
            }
            ("workload-aware", None) => Self::WorkloadAware,
            ("gdfs", None) => Self::Gdfs(0.0),
            ("flop-aware", None) => Self::FlopAware(FlopAwareOptions::default()),
            ("t-lru-tiers", None) => Self::Tiers(Vec::new()),
            (_, Some(_)) => return Err(unknown()),
            ("lru", _) => Self::Lru,
            ("threshold-lru", _) => Self::ThresholdLru(Tokens(1024)),
            ("t-lru", _) => Self::TLru,
            ("t-lru-printed", _) => Self::TLruPrinted,
            ("t-lru-trim-all", _) => Self::TLruTrimAll,
            ("end-aware", _) => Self::EndAware,
            ("length-aware", _) => Self::LengthAware,
            ("belady", _) => Self::Belady,
            ("to-belady", _) => Self::ToBelady,
            _ => return Err(unknown()),
        };
        Ok(spec)
    }
}

/// Returns a prefill cost with this share of attention; only ratios matter.
pub(super) fn gdfs_cost(attention: f64) -> PrefillCost {
    PrefillCost {
        gamma_ms_per_token2: attention,
        ..PrefillCost::linear(1.0, 0.0)
    }
}

fn write_et_lru(options: &EtLruOptions, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("et-lru")?;
    let default = EtLruOptions::default();
    let epsilon = (options.epsilon != default.epsilon).then(|| format!("eps={}", options.epsilon));
    let decay = options.decay_per_s.map(|per_s| format!("decay={per_s}"));
    let hazards = match &options.hazards {
        Hazards::Equal => Some("hazards=equal".to_owned()),
        Hazards::TurnClass => Some("hazards=turn-class".to_owned()),
        Hazards::Known(rates) => Some(format!("hazards=known({})", rates.len())),
        Hazards::Conversation => None,
    };
    let parts: Vec<_> = [epsilon, decay, hazards].into_iter().flatten().collect();
    if parts.is_empty() {
        Ok(())
    } else {
        write!(f, ":{}", parts.join(":"))
    }
}

fn parse_et_lru(text: Option<&str>) -> Option<EtLruOptions> {
    let mut options = EtLruOptions::default();
    for pair in text.into_iter().flat_map(|text| text.split(':')) {
        let (key, value) = pair.split_once('=')?;
        let number = || {
            value
                .parse::<f64>()
                .ok()
                .filter(|value| value.is_finite() && *value >= 0.0)
        };
        match key {
            "eps" => options.epsilon = number()?,
            "decay" => options.decay_per_s = Some(number()?),
            "hazards" => {
                options.hazards = match value {
                    "equal" => Hazards::Equal,
                    "turn-class" => Hazards::TurnClass,
                    "conversation" => Hazards::Conversation,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(options)
}

fn positive(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// Parses `CAPACITY/MS_PER_TOKEN/UNIT`; the unit defaults to 1.
fn parse_tier(text: &str) -> Option<Tier> {
    let mut parts = text.split('/');
    let capacity = Tokens(parts.next()?.parse().ok()?);
    let ms_per_token = positive(parts.next()?)?;
    let unit_tokens = parts
        .next()
        .map_or(Some(1), |unit| unit.parse().ok().filter(|unit| *unit > 0))?;
    parts.next().is_none().then_some(Tier {
        capacity,
        ms_per_token,
        unit_tokens,
    })
}
