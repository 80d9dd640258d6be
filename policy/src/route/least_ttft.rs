//! `least_ttft`: the least predicted time to first token of this turn alone, `wait + β + α·u + γ·u·(h + u/2)`. It is
//! `tail` with κ = 1. Under load it scatters conversations, because the turns behind pay for computing a prefix again.

use super::{Reason, Snapshot, Terms, Turn};

pub(super) fn score(_: &Snapshot<'_>, _: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    for terms in terms {
        terms.score = terms.predicted_ttft().0;
    }
    Reason::LeastCost
}
