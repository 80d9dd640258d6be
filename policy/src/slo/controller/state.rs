//! The controller in its own words.

use serde::Serialize;

/// One arm, as it explains itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArmState {
    /// Multiplies the tail.
    pub scale: f64,
    /// Mean excess over the objective per turn of the window.
    pub tel_ms: f64,
    /// Mean TTFT.
    pub mean_ms: f64,
    /// Mean prefill.
    pub work_ms: f64,
    /// Share of turns beyond the objective.
    pub violations: f64,
    /// Whether the work that it adds is allowed at this load.
    pub affordable: bool,
    /// Whether as many turns start about as soon as under plain LRU, where that meets the objective.
    pub keeps: bool,
    /// Excess that it saves against plain LRU, in standard errors: how many turns' worth of evidence that is.
    pub evidence: f64,
}

/// Why the controller does what it does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControllerState {
    /// The arm in force.
    pub current: usize,
    /// Turns in the window.
    pub turns: f64,
    /// ρ over the window.
    pub utilisation: f64,
    /// κ at that ρ.
    pub kappa: f64,
    /// Growth of the work that is allowed; negative where work has to be saved.
    pub allowance: f64,
    /// Multiple of the objective within which an arm has to serve all but a few of the turns; absent where plain LRU misses
    /// the objective, so that there is nothing to keep.
    pub bound: Option<f64>,
    /// How often another arm was taken.
    pub changes: u64,
    /// How often a worker's changed cost made it price its window anew.
    pub repriced: u64,
    /// Every arm.
    pub arms: Vec<ArmState>,
}
