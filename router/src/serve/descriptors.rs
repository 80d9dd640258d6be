//! File descriptor limits, and bounds that fit within them.
//!
//! Running out of descriptors would fail in the wrong place, such as `accept` on the admin port. So the soft limit is
//! raised, and bounds that do not fit are lowered.

use std::num::NonZeroUsize;

use config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors for other uses: admin connections, control calls, files, the runtime.
const OWN: usize = 1024;

/// Raises the soft limit to the hard one and lowers the connection and request limits to fit.
pub fn fit(config: &mut Config) {
    let limit = raised();
    let limits = &mut config.limits;
    let (connections, in_flight) = (limits.max_connections, limits.max_in_flight);
    let picker = config.endpoint_picker.as_ref();
    let picker = picker.map_or(0, |picker| picker.max_connections);
    (limits.max_connections, limits.max_in_flight) = fitting(connections, in_flight, picker, limit);
    if (limits.max_connections, limits.max_in_flight) != (connections, in_flight) {
        warn!(
            descriptors = limit,
            limits.max_connections = limits.max_connections.get(),
            limits.max_in_flight = limits.max_in_flight.get(),
            "limits.max_connections and limits.max_in_flight do not fit the limit on open files and are lowered; raise \
             the hard limit (`ulimit -Hn`, systemd's LimitNOFILE) or lower them in the configuration"
        );
    }
}

fn raised() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX)
}

fn fitting(
    connections: NonZeroUsize,
    in_flight: NonZeroUsize,
    picker: usize,
    limit: usize,
) -> (NonZeroUsize, NonZeroUsize) {
    let own = OWN.saturating_add(picker).min(limit / 2);
    let left = limit - own;
    if connections.get().saturating_add(in_flight.get()) <= left {
        return (connections, in_flight);
    }
    // Each request in flight needs a connection too; the other descriptors are for waiting connections.
    let at_least_one = |count: usize| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let in_flight = in_flight.min(at_least_one(left / 2));
    let connections = connections.min(at_least_one(left.saturating_sub(in_flight.get())));
    (connections, in_flight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_do_not_fit_are_lowered() {
        let fitting = |connections, in_flight, limit| {
            let count = |count| NonZeroUsize::new(count).unwrap();
            let (connections, in_flight) = super::fitting(count(connections), count(in_flight), 0, limit);
            (connections.get(), in_flight.get())
        };
        for (configured, limit, fits) in [
            ((10_000, 4_096), 1 << 20, (10_000, 4_096)),
            ((10_000, 4_096), usize::MAX, (10_000, 4_096)),
            ((10_000, 4_096), 15_120, (10_000, 4_096)),
            ((10_000, 4_096), 15_119, (9_999, 4_096)),
            ((10_000, 4_096), 4_096, (1_536, 1_536)),
            ((10_000, 100), 1_024, (412, 100)),
            ((10_000, 4_096), 256, (64, 64)),
            ((1, 1), 2, (1, 1)),
            ((9, 9), 0, (1, 1)),
        ] {
            let got = fitting(configured.0, configured.1, limit);
            assert_eq!(got, fits, "{configured:?} within {limit}");
        }
    }
}
