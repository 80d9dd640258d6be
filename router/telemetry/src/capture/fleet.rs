//! The line of a capture that has the workers' costs and the policy in force.

use policy::fleet_record::FleetRecord;
use policy::units::Millis;

/// Time between two looks at the fleet, however often its costs change.
const APART: Millis = Millis(10_000.0);

#[derive(Debug, Default)]
pub(super) struct FleetLines {
    last: Option<FleetRecord>,
    looked: Option<Millis>,
}

impl FleetLines {
    pub(super) fn is_due(&self, now: Millis) -> bool {
        self.looked.is_none_or(|looked| now - looked >= APART)
    }

    /// Takes a look at the fleet. Returns its line, if that differs from the last one.
    pub(super) fn look(&mut self, now: Millis, fleet: FleetRecord) -> Option<Vec<u8>> {
        self.looked = Some(now);
        if self.last.as_ref().is_some_and(|last| !fleet.differs_from(last)) {
            return None;
        }
        let line = line(&fleet);
        self.last = Some(fleet);
        Some(line)
    }

    pub(super) fn failed(&mut self) {
        self.last = None;
    }
}

/// Returns the line of a fleet. `simulator::trace` reads it.
pub(super) fn line(fleet: &FleetRecord) -> Vec<u8> {
    let mut line = serde_json::json!({ "fleet": fleet }).to_string().into_bytes();
    line.push(b'\n');
    line
}
