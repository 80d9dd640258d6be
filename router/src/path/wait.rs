//! A turn's way through admission: what it costs its key, and when it is its turn.

use std::sync::Arc;

use policy::units::{Millis, Tokens};

use super::choose::{self, Turn};
use crate::admission::gate::{self, Ask, Gate, Shed};
use crate::admission::keys::Caller;
use crate::app::{App, Place};
use crate::error::ApiError;

/// Charges a turn to its key, and waits until the engines have room for it.
///
/// # Errors
/// If its key's tokens are used up, or there is no room in time.
pub async fn turn(app: &Arc<App>, turn: &Turn, caller: &Caller, place: &mut Place) -> Result<(), ApiError> {
    let tokens = turn.tokens(app);
    // Held by a guard from here on: whoever is turned away, or leaves while it waits, gets it back.
    place.charge = caller.charge(app.clock, tokens)?;
    place.permit = enter(app, turn, caller, tokens).await?;
    let waited = (app.clock.now() - turn.arrived).0 / 1e3;
    app.metrics.admitted(caller.name(), waited);
    Ok(())
}

async fn enter(
    app: &Arc<App>,
    turn: &Turn,
    caller: &Caller,
    tokens: Tokens,
) -> Result<Option<gate::Permit>, ApiError> {
    let settings = app.admission.settings();
    let shed = settings.shed.then(|| Shed {
        due: turn.arrived + Millis(turn.goal.ttft.0 * (1.0 - MARGIN)),
        prefill: choose::least_prefill(app, turn).unwrap_or(Millis::ZERO),
    });
    let ask = Ask {
        model: gate::model(app, &turn.model).into(),
        flow: caller.flow(),
        standing: caller.standing(),
        // A place is held for a prefill and an answer: a long prompt counts for more, a short one not for nothing.
        cost: (tokens + REPLY).as_f64(),
        patience: gate::patience(app, shed),
        shed,
    };
    Gate::enter(app, ask).await
}

/// Share of the objective that is kept for what no prediction has in it: the way to the worker and back. Under overload
/// whoever is served has waited for as long as it could, so that without it a part of them would be late by a few
/// milliseconds.
const MARGIN: f64 = 0.05;

/// What an answer is taken to cost beside its prompt.
const REPLY: Tokens = Tokens(256);
