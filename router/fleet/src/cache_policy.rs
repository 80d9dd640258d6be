//! What a worker's cache drops first, for the mirror of it.
//!
//! Two things make an engine's policy: what it marks (its [`Dialect`](super::dialect::Dialect) knows: what hints say, or a
//! rule of its own such as SGLang's T-LRU), and the order in which the rest goes, which is found out here. The capability
//! document names it as `cache_policy`, SGLang's server info as `radix_eviction_policy`.

use config::CachePolicy;
use policy::cache::Order;
use serde_json::Value;

/// What a worker says of its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// This one.
    Known(CachePolicy),
    /// One that no mirror models.
    Unknown(String),
    /// Nothing.
    Nothing,
}

impl Said {
    /// Reads a capability document, or a server's info.
    #[must_use]
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

/// The order in which what is not marked goes.
#[must_use]
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
        let of = |document: &str| Said::of(document.as_bytes());
        for known in Order::ALL {
            let info = format!(r#"{{"radix_eviction_policy":"{}","x":1}}"#, known.as_str());
            let Said::Known(policy) = of(&info) else {
                panic!("{info}")
            };
            assert_eq!(order(policy), known);
        }
        let t_lru = Said::Known(CachePolicy::TLru);
        assert_eq!(of(r#"{"dialect":"tailroute","cache_policy":"t-lru"}"#), t_lru);
        assert_eq!(of(r#"{"radix_eviction_policy":"tlru"}"#), t_lru);
        assert_eq!(order(CachePolicy::TLru), Order::Lru);
        assert_eq!(
            of(r#"{"radix_eviction_policy":"priority"}"#),
            Said::Unknown("priority".to_owned())
        );
        for silent in ["{}", "[]", "nope", r#"{"cache_policy":7}"#] {
            assert_eq!(of(silent), Said::Nothing, "{silent}");
        }
    }
}
