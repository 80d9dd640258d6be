//! Workloads by name: presets, their parameters, and their syntax on the command line.

use std::str::FromStr;

use thiserror::Error;

use crate::trace::MAX_TOKENS_PER_FIELD;

/// The model's parameters, as in `docs/traces.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Conversations born per second.
    pub births_per_s: f64,
    /// Mean gap between a conversation's turns at the mean rate, in seconds: 1/(λ+μ).
    pub gap_s: f64,
    /// Mean turns of a conversation: (λ+μ)/μ.
    pub mean_turns: f64,
    /// Gamma shape of the turn rates λᵢ over conversations; from 1e6 on they are all equal.
    pub rate_shape: f64,
    /// Mean prompt before clipping, in tokens.
    pub prompt_mean: f64,
    /// Standard deviation of the prompt's logarithm.
    pub prompt_sigma: f64,
    /// Mean response before clipping, in tokens.
    pub response_mean: f64,
    /// Standard deviation of the response's logarithm.
    pub response_sigma: f64,
    /// Upper bound on a prompt, in tokens.
    pub max_prompt: f64,
    /// Upper bound on a response, in tokens.
    pub max_response: f64,
    /// Upper bound on a conversation, in tokens.
    pub max_context: f64,
}

/// Range of rates, gaps and shapes, beyond which the distributions are meaningless.
const ANY: (f64, f64) = (1e-9, 1e12);

/// Range of a length in tokens: that of a trace's fields, which keeps every sum inside 64 bits.
const LENGTH: (f64, f64) = (1.0, MAX_TOKENS_PER_FIELD as f64);

/// Names of the parameters, each with its minimum and maximum.
const RANGES: &[(&str, f64, f64)] = &[
    ("births_per_s", ANY.0, ANY.1),
    ("gap_s", ANY.0, ANY.1),
    ("mean_turns", 1.0, ANY.1),
    ("rate_shape", ANY.0, ANY.1),
    ("prompt_mean", LENGTH.0, LENGTH.1),
    ("prompt_sigma", ANY.0, ANY.1),
    ("response_mean", LENGTH.0, LENGTH.1),
    ("response_sigma", ANY.0, ANY.1),
    ("max_prompt", LENGTH.0, LENGTH.1),
    ("max_response", LENGTH.0, LENGTH.1),
    ("max_context", LENGTH.0, LENGTH.1),
];

fn keys() -> String {
    RANGES.iter().map(|range| range.0).collect::<Vec<_>>().join(", ")
}

impl Parameters {
    /// Parameters of a public chat service: most conversations have one or two turns, minutes apart, with prompts of
    /// unequal length.
    pub const WILDCHAT: Self = Self {
        births_per_s: 1.0 / 35.0,
        gap_s: 800.0,
        mean_turns: 2.35,
        rate_shape: 1.36,
        prompt_mean: 230.0,
        prompt_sigma: 2.2,
        response_mean: 220.0,
        response_sigma: 1.77,
        max_prompt: 3500.0,
        max_response: 2048.0,
        max_context: 5400.0,
    };

    /// Parameters of shared transcripts, long and without times: λ_conv = 1, λ_turn = 3 and 3.5 turns, as set by the
    /// paper.
    pub const SHAREGPT: Self = Self {
        births_per_s: 1.0,
        gap_s: 1.0 / 3.0,
        mean_turns: 3.5,
        rate_shape: 0.6,
        prompt_mean: 120.0,
        prompt_sigma: 2.0,
        response_mean: 1140.0,
        response_sigma: 0.8,
        max_prompt: 3600.0,
        max_response: 2300.0,
        max_context: 47_000.0,
    };

    /// Fails with [`BadWorkload::Value`] for the first parameter that is not within its [range](RANGES).
    pub fn check(mut self) -> Result<(), BadWorkload> {
        for &(key, least, most) in RANGES {
            // A NaN is in no range.
            if !self
                .field(key)
                .is_some_and(|value| (least..=most).contains(value))
            {
                return Err(BadWorkload::Value { key, least, most });
            }
        }
        Ok(())
    }

    fn field(&mut self, key: &str) -> Option<&mut f64> {
        Some(match key {
            "births_per_s" => &mut self.births_per_s,
            "gap_s" => &mut self.gap_s,
            "mean_turns" => &mut self.mean_turns,
            "rate_shape" => &mut self.rate_shape,
            "prompt_mean" => &mut self.prompt_mean,
            "prompt_sigma" => &mut self.prompt_sigma,
            "response_mean" => &mut self.response_mean,
            "response_sigma" => &mut self.response_sigma,
            "max_prompt" => &mut self.max_prompt,
            "max_response" => &mut self.max_response,
            "max_context" => &mut self.max_context,
            _ => return None,
        })
    }
}

/// A workload by name and seed, as written on the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Name of the workload: `wildchat` or `sharegpt`.
    pub name: &'static str,
    /// Seed of every draw.
    pub seed: u64,
    /// The preset's parameters, with any overrides.
    pub parameters: Parameters,
}

/// The reason why a workload's name was refused.
#[derive(Debug, Error, PartialEq)]
pub enum BadWorkload {
    /// The text is not of the form `gen:NAME:SEED[:key=value,…]`.
    #[error("`{0}` is not gen:NAME:SEED or gen:NAME:SEED:key=value,…")]
    Form(String),
    /// The workload takes no parameters, and the text is not of the form `gen:NAME:SEED`.
    #[error("`{text}` is not gen:{name}:SEED, which takes no parameters")]
    Seed {
        /// The text given.
        text: String,
        /// The workload's name.
        name: &'static str,
    },
    /// The workload is unknown.
    #[error("no generated workload `{0}`; there are wildchat, sharegpt, agentic and hot")]
    Name(String),
    /// The parameter is unknown.
    #[error("no parameter `{0}`; there are {keys}", keys = keys())]
    Key(String),
    /// The parameter's value is out of range.
    #[error("`{key}` must be a number from {least:e} to {most:e}")]
    Value {
        /// The parameter.
        key: &'static str,
        /// The minimum.
        least: f64,
        /// The maximum.
        most: f64,
    },
}

impl FromStr for Workload {
    type Err = BadWorkload;

    fn from_str(text: &str) -> Result<Self, BadWorkload> {
        let form = || BadWorkload::Form(text.to_owned());
        let mut parts = text.strip_prefix("gen:").ok_or_else(form)?.splitn(3, ':');
        let (name, mut parameters) = match parts.next() {
            Some("wildchat") => ("wildchat", Parameters::WILDCHAT),
            Some("sharegpt") => ("sharegpt", Parameters::SHAREGPT),
            other => return Err(BadWorkload::Name(other.unwrap_or_default().to_owned())),
        };
        let seed = parts.next().and_then(|seed| seed.parse().ok()).ok_or_else(form)?;
        for pair in parts.next().into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = pair.split_once('=').ok_or_else(form)?;
            let field = parameters
                .field(key)
                .ok_or_else(|| BadWorkload::Key(key.to_owned()))?;
            // A value that is no number is refused as out of range.
            *field = value.parse().unwrap_or(f64::NAN);
        }
        parameters.check()?;
        Ok(Self {
            name,
            seed,
            parameters,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_workloads_are_refused_with_the_part_to_blame() {
        let refused = |text: &str| text.parse::<Workload>().unwrap_err().to_string();
        assert!(refused("gen:wildchat").contains("is not gen:NAME:SEED"));
        assert!(refused("gen:mars:1").contains("no generated workload `mars`"));
        assert!(
            refused("gen:wildchat:1:speed=3")
                .contains("no parameter `speed`; there are births_per_s, gap_s,")
        );
        assert_eq!(
            refused("gen:wildchat:1:gap_s=-3"),
            "`gap_s` must be a number from 1e-9 to 1e12"
        );
        for value in ["0.5", "1e13", "1e308", "nan", "inf", "many"] {
            assert!(
                refused(&format!("gen:wildchat:1:mean_turns={value}"))
                    .starts_with("`mean_turns` must be a number from 1e0"),
                "{value}"
            );
        }
        assert!(refused("gen:wildchat:1:rate_shape=1e-310").contains("`rate_shape`"));
        assert!(refused("gen:wildchat:1:prompt_mean=9,max_prompt=1e300").contains("`max_prompt`"));
    }

    #[test]
    fn every_parameter_has_a_range_and_every_range_a_parameter() {
        let mut parameters = Parameters::WILDCHAT;
        for (key, ..) in RANGES {
            assert!(parameters.field(key).is_some(), "{key}");
        }
        assert_eq!(size_of::<Parameters>(), RANGES.len() * size_of::<f64>());
    }
}
