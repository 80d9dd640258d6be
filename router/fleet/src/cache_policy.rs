//! Eviction order of a worker's cache, for its mirror.
//!
//! The worker's [`Dialect`](super::dialect::Dialect) decides which blocks are evicted first. The order of the others is
//! detected from `cache_policy` of its capability document or `radix_eviction_policy` of SGLang's server info.

use config::CachePolicy;
use policy::cache::Order;
use serde_json::Value;

/// Cache policy that a worker reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportedPolicy {
    /// The policy is one that mirrors simulate.
    Known(CachePolicy),
    /// Mirrors do not simulate the policy of this name.
    Unknown(String),
    /// The worker reports no policy.
    Nothing,
}

impl ReportedPolicy {
    /// Reads a capability document, or SGLang's server info.
    pub fn of(document: &[u8]) -> Self {
        let says: Value = serde_json::from_slice(document).unwrap_or_default();
        let name = ["cache_policy", "radix_eviction_policy"].map(|key| says[key].as_str());
        match name.into_iter().flatten().next() {
            None => Self::Nothing,
            Some("t-lru" | "tlru") => Self::Known(CachePolicy::TLru),
            Some(name) => Order::named(name).map_or_else(
                || Self::Unknown(name.chars().take(32).collect()),
                |order| Self::Known(policy_of(order)),
            ),
        }
    }
}

fn policy_of(order: Order) -> CachePolicy {
    match order {
        Order::Lru => CachePolicy::Lru,
        Order::Lfu => CachePolicy::Lfu,
        Order::Slru => CachePolicy::Slru,
        Order::Fifo => CachePolicy::Fifo,
        Order::Mru => CachePolicy::Mru,
        Order::Filo => CachePolicy::Filo,
    }
}

/// Returns the eviction order of unmarked blocks.
pub fn order(policy: CachePolicy) -> Order {
    match policy {
        CachePolicy::Auto | CachePolicy::Lru | CachePolicy::TLru => Order::Lru,
        CachePolicy::Lfu => Order::Lfu,
        CachePolicy::Slru => Order::Slru,
        CachePolicy::Fifo => Order::Fifo,
        CachePolicy::Mru => Order::Mru,
        CachePolicy::Filo => Order::Filo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_where_each_engine_names_it() {
        let of = |document: &str| ReportedPolicy::of(document.as_bytes());
        for known in Order::ALL {
            let info = format!(r#"{{"radix_eviction_policy":"{}","x":1}}"#, known.as_str());
            let ReportedPolicy::Known(policy) = of(&info) else {
                panic!("{info}")
            };
            assert_eq!(order(policy), known);
        }
        let t_lru = ReportedPolicy::Known(CachePolicy::TLru);
        assert_eq!(of(r#"{"dialect":"tailroute","cache_policy":"t-lru"}"#), t_lru);
        assert_eq!(of(r#"{"radix_eviction_policy":"tlru"}"#), t_lru);
        assert_eq!(order(CachePolicy::TLru), Order::Lru);
        assert_eq!(
            of(r#"{"radix_eviction_policy":"priority"}"#),
            ReportedPolicy::Unknown("priority".to_owned())
        );
        for silent in ["{}", "[]", "nope", r#"{"cache_policy":7}"#] {
            assert_eq!(of(silent), ReportedPolicy::Nothing, "{silent}");
        }
    }
}
