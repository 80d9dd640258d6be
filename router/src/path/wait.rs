//! Admits a turn: charges its key and waits at the gate.

use policy::units::{Millis, Tokens};

use super::context::RequestContext;
use super::select;
use super::turn::Turn;
use crate::admission::gate::{self, Ask, Gate, Shed};
use crate::app::RequestPermit;
use protocol::error::ApiError;

/// Charges a turn to its key, and waits until the engines have room. Fails if the key's tokens are used up, or no room
/// is free in time.
pub(super) async fn turn(
    context: &RequestContext<'_>,
    turn: &Turn,
    place: &mut RequestPermit,
) -> Result<(), ApiError> {
    let RequestContext { app, caller, .. } = *context;
    let tokens = turn.tokens(app);
    // A guard holds the charge: a turn that is refused, or whose client leaves while it waits, gets it back.
    place.charge = caller.charge(app.clock, tokens)?;
    place.permit = enter(context, turn, tokens).await?;
    let waited = (app.clock.now() - turn.arrived).0 / 1e3;
    app.metrics.admitted(caller.name(), waited);
    Ok(())
}

async fn enter(
    context: &RequestContext<'_>,
    turn: &Turn,
    tokens: Tokens,
) -> Result<Option<gate::Permit>, ApiError> {
    let RequestContext { app, caller, .. } = *context;
    let settings = app.admission.settings();
    let shed = settings.shed.then(|| Shed {
        due: turn.arrived + Millis(turn.goal.ttft.0 * (1.0 - MARGIN)),
        prefill: select::least_prefill(app, turn).unwrap_or(Millis::ZERO),
    });
    let ask = Ask {
        model: gate::model(app, &turn.model).into(),
        flow: caller.flow(),
        standing: caller.standing(),
        // A permit is held for prefill and response, so the cost includes an assumed reply.
        cost: (tokens + REPLY).as_f64(),
        patience: gate::patience(app, shed),
        shed,
    };
    Gate::enter(app, ask).await
}

/// Share of the objective reserved for what predictions omit, such as the network. Under overload every admitted turn
/// has waited as long as it could; without the margin some would be late by a few milliseconds.
const MARGIN: f64 = 0.05;

/// Tokens of the assumed reply.
const REPLY: Tokens = Tokens(256);
