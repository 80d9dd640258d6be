//! Sizes and durations as types, so that units are checked by the compiler.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// A number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

/// A duration, or a point on the caller's clock, in milliseconds. Only differences between points are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub f64);

impl Tokens {
    /// Zero tokens.
    pub const ZERO: Self = Self(0);

    /// Returns the count as a real number, for cost formulas.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Returns `self - other`, or zero if that is negative.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the number of blocks of `block_size` tokens that are completely filled.
    pub fn full_blocks(self, block_size: u32) -> u64 {
        self.0 / u64::from(block_size.max(1))
    }

    /// Returns the number of blocks of `block_size` tokens needed to hold these tokens.
    pub fn blocks_ceil(self, block_size: u32) -> u64 {
        self.0.div_ceil(u64::from(block_size.max(1)))
    }
}

impl Millis {
    /// Zero duration.
    pub const ZERO: Self = Self(0.0);

    /// Returns `self - other`, or zero if that is negative.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self((self.0 - other.0).max(0.0))
    }

    /// Returns the later, or longer, of two.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Returns the earlier, or shorter, of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

impl Add for Tokens {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|tokens| tokens.0).sum())
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Millis {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Millis {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Sum for Millis {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|millis| millis.0).sum())
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0)
    }
}
