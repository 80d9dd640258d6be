//! Turns held in the router: [`late_binding`] on the simulated fleet.

use super::brain::{Arrival, Brain, Sent};
use super::late_binding::{self, Deferral, Plan};
use super::server::Server;
use super::workload::Item;
use policy::route::Decision;
use policy::route::Patience;
use policy::units::Millis;

/// Time added to the predicted time of room, so that rounding cannot make every pass slightly too early.
const A_HAIR: Millis = Millis(1e-3);

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    arrival: Arrival,
    due: Millis,
}

impl Brain<'_> {
    pub(super) fn hold(&mut self, now: Millis, servers: &[Server], arrival: Arrival, item: &Item) -> Held {
        self.look_at(now, servers, arrival.at, item);
        let prefill = late_binding::least_prefill(&self.views, item.prompt, &self.resident);
        let due = Patience::IN_ROUTER.due(arrival.at, prefill, self.objective(item));
        Held { arrival, due }
    }

    pub(super) fn release(
        &mut self,
        now: Millis,
        servers: &[Server],
        hold: Deferral,
        held: &mut Vec<Held>,
        items: &[Item],
    ) -> Vec<(u32, Sent, Decision)> {
        held.sort_by(|a, b| {
            a.due
                .0
                .total_cmp(&b.due.0)
                .then(a.arrival.turn.cmp(&b.arrival.turn))
        });
        let settings = late_binding::settings(&self.config.settings);
        let mut plan = Plan::new(hold, self.loads.len());
        let mut gone = Vec::new();
        let mut at = 0;
        while let Some(&Held { arrival, .. }) = held.get(at) {
            if plan.is_over(
                self.loads
                    .iter()
                    .map(|load| load.ready.then(|| load.pending.wait(now))),
            ) {
                break;
            }
            let item = &items[arrival.turn as usize];
            self.look_at(now, servers, arrival.at, item);
            let mut views = std::mem::take(&mut self.views);
            let placed = plan.place(&mut views, &settings, self.sequence, &self.turn(item));
            self.views = views;
            match placed {
                Some(placed) if placed.goes => {
                    self.sequence += 1;
                    let sent = self.sent(now, &placed.decision, arrival, item);
                    gone.push((arrival.turn, sent, placed.decision));
                    held.remove(at);
                }
                Some(_) => at += 1,
                None => break,
            }
        }
        gone
    }

    /// Returns how long until a busy worker should have room again.
    pub(super) fn next_room(&self, now: Millis, hold: Deferral) -> Option<Millis> {
        let over = |wait: Millis| wait.saturating_sub(hold.within);
        let busy = self.loads.iter().filter(|load| load.ready);
        let over = busy
            .map(|load| over(load.pending.wait(now)))
            .filter(|over| *over > Millis::ZERO);
        // With a limit of zero, the next first token triggers the next pass.
        over.reduce(Millis::min)
            .filter(|_| hold.within > Millis::ZERO)
            .map(|over| over + A_HAIR)
    }
}
