//! Samples, the cells they are measured for, and facts about the worker.

use policy::units::{Millis, Tokens};
use serde::{Deserialize, Serialize};

/// A point of the grid within one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Prompt tokens that should be cached.
    pub cached_tokens: u64,
    /// Prompt tokens that should have to be computed.
    pub uncached_tokens: u64,
    /// Number of the pass; each has its own prefixes.
    #[serde(rename = "repeat")]
    pub pass: u32,
}

/// One measurement. Its tokens are measured counts, not the cell's requested ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Prompt tokens that were cached.
    #[serde(rename = "cached_tokens")]
    pub cached: Tokens,
    /// Prompt tokens that had to be computed.
    #[serde(rename = "uncached_tokens")]
    pub uncached: Tokens,
    /// Time from the request to its first content, without queueing.
    #[serde(rename = "prefill_ms")]
    pub prefill: Millis,
    /// The clock of the time.
    #[serde(default)]
    pub clock: Clock,
    /// Floating-point operations of the prefill, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// Bytes that the prefill has to move at least, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

/// The clock of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The engine's: time to first token minus time in the queue.
    #[default]
    Engine,
    /// This program's: from the request to the first content.
    Client,
}

/// Known facts about the measured worker. All of them are written to the calibration file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Engine and version, such as `vllm 0.32.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The model that was measured.
    pub model: String,
    /// The accelerator, or the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Version of the device's driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Software on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
    /// Longest prompt and answer in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Tokens per cache block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<u64>,
    /// Size of the cache in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_tokens: Option<u64>,
    /// Peak rates of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roofline: Option<Roofline>,
}

/// Peak rates of a device: a prefill takes at least `max(flops / flops_per_s, bytes / bytes_per_s)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Floating-point operations per second in the model's number type.
    pub flops_per_s: f64,
    /// Bytes per second from device memory.
    pub bytes_per_s: f64,
    /// Source of these figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl Roofline {
    /// Returns the share of the roofline that a sample reached, if its operations and bytes are known.
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
        // The bytes take 1 ms and the operations 1 ms: half of the 2 ms.
        assert_eq!(roofline.share(&sample), Some(0.5));
    }
}
