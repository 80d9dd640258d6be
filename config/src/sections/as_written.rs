//! Forms in which keys are written whose fields have another type: `#[serde(with = "…")]` of a field. The key's schema is
//! that of the form.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::units::Millis;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};

/// Declares forms: what is written, the type of the field, and the functions between them. Only times can fail to be read.
macro_rules! forms {
    ($($(#[$doc:meta])* $form:ident: $written:ty => $used:ty { read: $read:expr, write: $write:expr })*) => {$(
        $(#[$doc])*
        pub(crate) struct $form;

        impl $form {
            pub(crate) fn serialize<S: Serializer>(used: &$used, to: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$used) -> $written = $write;
                write(used).serialize(to)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$used, D::Error> {
                let read: fn($written) -> Option<$used> = $read;
                let used = read(<$written>::deserialize(from)?);
                used.ok_or_else(|| D::Error::custom("expected a length of time"))
            }
        }

        impl JsonSchema for $form {
            fn schema_name() -> Cow<'static, str> {
                <$written>::schema_name()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                <$written>::json_schema(generator)
            }
        }
    )*};
}

forms! {
    AsSeconds: f64 => Duration {
        read: duration,
        write: Duration::as_secs_f64
    }
    /// 0 is `None`.
    AsSecondsOrNever: f64 => Option<Duration> {
        read: |seconds| duration(seconds).map(positive),
        write: |time| time.unwrap_or_default().as_secs_f64()
    }
    AsMillis: f64 => Duration {
        read: |millis| duration(millis / 1e3),
        write: |time| time.as_secs_f64() * 1e3
    }
    /// 0 is `None`.
    AsMillisOrNever: f64 => Option<Duration> {
        read: |millis| duration(millis / 1e3).map(positive),
        write: |time| time.unwrap_or_default().as_secs_f64() * 1e3
    }
    /// Seconds of a time that feeds the policies.
    AsPolicySeconds: f64 => Millis {
        read: |seconds| Some(Millis(seconds * 1e3)),
        write: |time| time.0 / 1e3
    }
    /// Milliseconds of a time that feeds the policies; 0 is `None`.
    AsPolicyMillisOrNever: f64 => Option<Millis> {
        read: |millis| Some((millis > 0.0).then_some(Millis(millis))),
        write: |time| time.map_or(0.0, |time| time.0)
    }
    /// 0 is `None`.
    AsCountOrNever: u32 => Option<NonZeroU32> {
        read: |count| Some(NonZeroU32::new(count)),
        write: |count| count.map_or(0, NonZeroU32::get)
    }
    /// A number of 64 bits, reduced to the largest `usize`.
    AsBytes: u64 => usize {
        read: |bytes| Some(usize::try_from(bytes).unwrap_or(usize::MAX)),
        write: |bytes| *bytes as u64
    }
    /// An empty text is `None`.
    AsPath: String => Option<PathBuf> {
        read: |path| Some((!path.is_empty()).then(|| path.into())),
        write: |path| path.as_deref().unwrap_or(Path::new("")).display().to_string()
    }
    /// An empty text is `None`.
    AsText: String => Option<String> {
        read: |text| Some(Some(text).filter(|text| !text.is_empty())),
        write: |text| text.clone().unwrap_or_default()
    }
}

fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

fn positive(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| !time.is_zero())
}

/// Makes a default of a constant.
pub(crate) const fn at_least_one(number: usize) -> NonZeroUsize {
    match NonZeroUsize::new(number) {
        Some(number) => number,
        None => NonZeroUsize::MIN,
    }
}
