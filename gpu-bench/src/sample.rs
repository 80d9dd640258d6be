//! What is measured, and what of.

use policy::units::{Millis, Tokens};
use serde::{Deserialize, Serialize};

/// One measurement to be made: so much history, so much new, in the n-th pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Tokens of the prompt that should come from the cache.
    pub cached_tokens: u64,
    /// Tokens that should have to be computed.
    pub uncached_tokens: u64,
    /// Which pass over the grid; each has prefixes of its own.
    #[serde(rename = "repeat")]
    pub pass: u32,
}

/// One measurement that was made. Its tokens are what was counted, not what the cell asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Prompt tokens that came from the cache.
    #[serde(rename = "cached_tokens")]
    pub cached: Tokens,
    /// Prompt tokens that had to be computed.
    #[serde(rename = "uncached_tokens")]
    pub uncached: Tokens,
    /// From the request to its first content, without time in a queue.
    #[serde(rename = "prefill_ms")]
    pub prefill: Millis,
    /// By whose clock.
    #[serde(default)]
    pub clock: Clock,
    /// Floating-point operations of the prefill, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// Bytes that the prefill has to move at least, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

/// Whose clock measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The engine's own: time to first token less time in the queue.
    #[default]
    Engine,
    /// This program's: from the request to the first content.
    Client,
}

/// What is known of what is measured. All of it goes into the calibration file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Engine and version, as `vllm 0.32.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The model that was measured.
    pub model: String,
    /// The accelerator, or the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// What ran on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
    /// Most tokens of prompt and answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Tokens per block of its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<u64>,
    /// Tokens that its cache holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_tokens: Option<u64>,
    /// What the device could do at best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roofline: Option<Roofline>,
}

/// What a device could do at best: a prefill takes no less than `max(flops / flops_per_s, bytes / bytes_per_s)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Floating-point operations per second in the type that the model computes in.
    pub flops_per_s: f64,
    /// Bytes per second from the device's memory.
    pub bytes_per_s: f64,
    /// Where these figures are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl Roofline {
    /// The share of the roofline that a sample reached, where its operations and bytes are known.
    #[must_use]
    pub fn share(&self, sample: &Sample) -> Option<f64> {
        let compute_s = sample.flops? / self.flops_per_s;
        let memory_s = sample.bytes.unwrap_or(0.0) / self.bytes_per_s;
        let share = compute_s.max(memory_s) * 1e3 / sample.prefill.0;
        share.is_finite().then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_line_of_the_childs_protocol() {
        let line = r#"{"cached_tokens":64,"uncached_tokens":32,"prefill_ms":2.0,"flops":1e9,"bytes":5e8}"#;
        let sample: Sample = serde_json::from_str(line).unwrap();
        assert_eq!((sample.cached, sample.uncached), (Tokens(64), Tokens(32)));
        assert_eq!(sample.clock, Clock::Engine);
        let roofline = Roofline {
            flops_per_s: 1e12,
            bytes_per_s: 5e11,
            from: None,
        };
        // Moving the bytes takes 1 ms, the operations 1 ms as well: half of the 2 ms.
        assert_eq!(roofline.share(&sample), Some(0.5));
    }
}
