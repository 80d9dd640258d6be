//! Conversions of keys that the router uses as another type than the file has: `#[serde(with = …)]` of a field.

use std::time::Duration;

use policy::units::Millis;
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub(super) mod seconds {
    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        duration::<D>(f64::deserialize(from)?)
    }
}

/// Seconds; 0 is `None`.
pub(super) mod seconds_or_never {
    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.unwrap_or_default().as_secs_f64())
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let time = duration::<D>(f64::deserialize(from)?)?;
        Ok(Some(time).filter(|time| !time.is_zero()))
    }
}

pub(super) mod millis {
    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64() * 1e3)
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        duration::<D>(f64::deserialize(from)? / 1e3)
    }
}

/// Milliseconds; 0 is `None`.
pub(super) mod millis_or_never {
    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.unwrap_or_default().as_secs_f64() * 1e3)
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let time = duration::<D>(f64::deserialize(from)? / 1e3)?;
        Ok(Some(time).filter(|time| !time.is_zero()))
    }
}

/// Seconds of a time that feeds the policies.
pub(super) mod seconds_of_policy {
    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(time: &Millis, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.0 / 1e3)
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Millis, D::Error> {
        Ok(Millis(f64::deserialize(from)? * 1e3))
    }
}

/// A count; 0 is `None`.
pub(super) mod count_or_never {
    use std::num::NonZeroU32;

    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(
        count: &Option<NonZeroU32>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u32(count.map_or(0, NonZeroU32::get))
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<NonZeroU32>, D::Error> {
        Ok(NonZeroU32::new(u32::deserialize(from)?))
    }
}

/// Bytes: a number of 64 bits, reduced to the largest `usize`.
pub(super) mod bytes {
    use super::*;

    pub(in crate::sections) fn serialize<S: Serializer>(bytes: &usize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*bytes as u64)
    }

    pub(in crate::sections) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        Ok(usize::try_from(u64::deserialize(from)?).unwrap_or(usize::MAX))
    }
}

fn duration<'de, D: Deserializer<'de>>(seconds: f64) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(seconds).map_err(|_| D::Error::custom("expected a length of time"))
}
