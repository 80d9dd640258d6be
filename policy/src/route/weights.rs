//! The weights of `tail`, as a table for settings, overrides, configuration, schema, admin API and console. A weight is
//! added here, and used in [`super::tail`]. `make generate` writes the rest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The description of a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightSpec {
    /// The weight's name in the configuration.
    pub name: &'static str,
    /// The weight's name in the console.
    pub label: &'static str,
    /// The unit in the console; empty for a factor.
    pub unit: &'static str,
    /// The default value.
    pub default: f64,
    /// The largest value; the least is 0.
    pub most: f64,
    /// The effect of the weight, in one or two sentences.
    pub help: &'static str,
    /// The effect of a higher value, in one sentence; may be empty.
    pub effect: &'static str,
}

macro_rules! weights {
    ($(
        $(#[doc = $help:literal])+
        $variant:ident as $field:ident {
            default: $default:tt, most: $most:tt, label: $label:literal, unit: $unit:literal, effect: $effect:literal
        }
    )+) => {
        /// Weights of the `tail` policy.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct Weights {
            $(
                $(#[doc = $help])+
                #[schemars(range(min = 0, max = $most))]
                pub $field: f64,
            )+
        }

        impl Default for Weights {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        /// Weights of the `tail` policy that differ.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct OwnWeights {
            $(
                $(#[doc = $help])+
                #[schemars(range(min = 0, max = $most))]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<f64>,
            )+
        }

        impl OwnWeights {
            /// Returns one weight, to be changed.
            pub fn get_mut(&mut self, weight: WeightName) -> &mut Option<f64> {
                match weight {
                    $(WeightName::$variant => &mut self.$field),+
                }
            }

            /// Returns `weights` with these weights in place of those that they override.
            pub(super) fn over(&self, weights: Weights) -> Weights {
                Weights { $($field: self.$field.unwrap_or(weights.$field)),+ }
            }
        }

        impl From<Weights> for OwnWeights {
            fn from(weights: Weights) -> Self {
                Self { $($field: Some(weights.$field)),+ }
            }
        }

        /// A weight of the `tail` policy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum WeightName {
            $($(#[doc = $help])+ $variant),+
        }

        impl WeightName {
            /// Every weight, in the order of the documentation.
            pub const ALL: [Self; [$($most),+].len()] = [$(Self::$variant),+];

            /// Returns the description of the weight.
            pub const fn spec(self) -> WeightSpec {
                match self {
                    $(Self::$variant => WeightSpec {
                        name: stringify!($field),
                        label: $label,
                        unit: $unit,
                        default: $default,
                        most: $most,
                        help: concat!($($help),+).trim_ascii(),
                        effect: $effect,
                    }),+
                }
            }
        }
    };
}

weights! {
    /// How strongly turns stick to the worker that holds their prefix. 0: not at all. It multiplies κ's excess over 1.
    Locality as locality {
        default: 0.8, most: 1e6, label: "Locality", unit: "", effect: "Higher: turns stay where their prefix is."
    }
    /// Multiplies the cost of placing a conversation on a worker with many others: a mean prefill times the worker's
    /// share of turns and of conversations.
    Home as home {
        default: 0.1, most: 1e6, label: "Home", unit: "", effect: ""
    }
    /// Multiplies the predicted wait.
    Load as load {
        default: 1.0, most: 1e6, label: "Load", unit: "", effect: "Higher: turns leave queues sooner."
    }
    /// Extra cost per millisecond predicted beyond the objective.
    Slo as slo {
        default: 0.0, most: 1e6, label: "SLO", unit: "per ms", effect: ""
    }
    /// Milliseconds of credit for the conversation's last worker.
    AffinityMs as affinity_ms {
        default: 0.0, most: 1e9, label: "Affinity", unit: "ms", effect: ""
    }
    /// Milliseconds of random tie-breaking.
    SpreadMs as spread_ms {
        default: 0.0, most: 1e9, label: "Spread", unit: "ms", effect: ""
    }
}

impl OwnWeights {
    /// Returns whether no weight differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl WeightName {
    /// Returns the weight's name in the configuration.
    pub const fn as_str(self) -> &'static str {
        self.spec().name
    }
}

/// The schema of one weight's name.
impl JsonSchema for WeightName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WeightName".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A weight of the `tail` rule.",
            "enum": Self::ALL,
            "type": "string",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_called_the_same_wherever_it_is_named() {
        for weight in WeightName::ALL {
            let spec = weight.spec();
            assert_eq!(serde_json::to_value(weight).unwrap(), spec.name);
            let mut own = OwnWeights::default();
            *own.get_mut(weight) = Some(spec.default);
            let written = serde_json::to_value(own).unwrap();
            assert_eq!(written, serde_json::json!({ spec.name: spec.default }));
            assert_eq!(own.over(Weights::default()), Weights::default());
            assert!(
                spec.default <= spec.most && spec.help.ends_with('.'),
                "{}",
                spec.name
            );
        }
    }
}
