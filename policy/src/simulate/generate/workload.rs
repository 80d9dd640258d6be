//! Workloads by name: presets, their parameters, and how both are spelled on a command line.

use std::str::FromStr;

use thiserror::Error;

/// The model's parameters; see the module's table.
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
    /// Longest prompt.
    pub max_prompt: f64,
    /// Longest response.
    pub max_response: f64,
    /// Longest conversation.
    pub max_context: f64,
}

impl Parameters {
    /// A public chat service: most ask once or twice, minutes apart, with prompts of very unequal length.
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

    /// Shared transcripts, long and without times of their own: λ_conv = 1, λ_turn = 3 and 3.5 turns as the paper sets them.
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

/// A workload by name and seed, as written on a command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// `wildchat` or `sharegpt`.
    pub name: &'static str,
    /// Seed of every draw.
    pub seed: u64,
    /// The preset's parameters, some of them perhaps overridden.
    pub parameters: Parameters,
}

/// Why a workload's name was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadWorkload {
    /// Not of the form `gen:NAME:SEED[:key=value,…]`.
    #[error("`{0}` is not gen:NAME:SEED or gen:NAME:SEED:key=value,…")]
    Form(String),
    /// No such workload.
    #[error("no generated workload `{0}`; there are wildchat and sharegpt")]
    Name(String),
    /// No such parameter.
    #[error("no parameter `{0}`")]
    Key(String),
    /// A value out of range.
    #[error("`{key}` must be a positive number{more}")]
    Value {
        /// The parameter.
        key: String,
        /// What else holds for it.
        more: &'static str,
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
            let refused = |more| BadWorkload::Value {
                key: key.to_owned(),
                more,
            };
            *field = value.parse().map_err(|_| refused(""))?;
            if !(field.is_finite() && *field > 0.0) {
                return Err(refused(""));
            }
            if key == "mean_turns" && *field < 1.0 {
                return Err(refused(" from 1 on"));
            }
        }
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
        assert!(refused("gen:wildchat:1:speed=3").contains("no parameter `speed`"));
        assert!(refused("gen:wildchat:1:gap_s=-3").contains("`gap_s` must be a positive number"));
        assert!(refused("gen:wildchat:1:mean_turns=0.5").contains("from 1 on"));
    }
}
