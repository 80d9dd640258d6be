//! Admits a turn: charges its key and waits at the gate.

use policy::units::{Millis, Tokens};

use super::context::RequestContext;
use super::select;
use super::turn::Turn;
use crate::RequestPermit;
use crate::admission::gate::{self, Ask, Gate, Shed};
use protocol::error::ApiError;

/// Charges the key and waits at the gate. Fails if the key's tokens are used up, or the gate does not admit the turn.
pub(super) async fn turn(
    context: &RequestContext<'_>,
    turn: &Turn,
    permit: &mut RequestPermit,
) -> Result<(), ApiError> {
    let RequestContext { proxy, caller, .. } = *context;
    let tokens = turn.tokens(&proxy.state.routing);
    // A guard holds the charge: a turn that is refused, or whose client leaves while it waits, gets it back.
    permit.charge = caller.charge(proxy.state.routing.clock, tokens)?;
    permit.gate = enter(context, turn, tokens).await?;
    let waited = (proxy.state.routing.clock.now() - turn.arrived).0 / 1e3;
    proxy.state.routing.metrics.admitted(caller.name(), waited);
    Ok(())
}

async fn enter(
    context: &RequestContext<'_>,
    turn: &Turn,
    tokens: Tokens,
) -> Result<Option<gate::Permit>, ApiError> {
    let RequestContext { proxy, caller, .. } = *context;
    let shed = proxy.admission.settings().shed.then(|| Shed {
        due: turn.arrived + Millis(turn.goal.ttft.0 * (1.0 - MARGIN)),
        prefill: select::least_prefill(&proxy.state.routing, turn).unwrap_or(Millis::ZERO),
    });
    let ask = Ask {
        model: gate::model(&proxy.state.routing, &turn.model).into(),
        flow: caller.flow(),
        standing: caller.standing(),
        // A permit is held for prefill and response, so the cost includes an assumed reply.
        cost: (tokens + REPLY).as_f64(),
        patience: gate::patience(&proxy.admission, shed),
        shed,
    };
    Gate::enter(&proxy.admission, ask).await
}

/// Share of the objective reserved for what predictions omit, such as the network. Under overload every admitted turn
/// has waited as long as it could; without the margin some would be late by a few milliseconds.
const MARGIN: f64 = 0.05;

const REPLY: Tokens = Tokens(256);

#[cfg(test)]
mod tests;
