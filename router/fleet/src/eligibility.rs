//! The workers that may get a request, by its model and by what is known of them.
//!
//! Eligible are the workers that are most certain to serve the model:
//!
//! 1. those that list it;
//! 2. if there are none, those that list the base of `BASE:ADAPTER`;
//! 3. if there are none, those whose list is unknown;
//! 4. if there are none and unlisted models are passed on, all that did not deny the model.
//!
//! Workers that are down count as well: while one that lists the model is down, a worker whose list is unknown gets no
//! request for it. A sleeping worker is eligible only if no eligible ready one is awake.

use std::sync::Arc;

use config::UnlistedModels;

use crate::facts::Serves;
use crate::overrides::AdminState;
use crate::{Fleet, Worker};

/// The workers that are eligible for the requests of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eligibility<'a> {
    /// The model; `None` if the request names none.
    model: Option<&'a str>,
    least: Serves,
    /// Whether a ready worker whose engine is awake is eligible.
    is_one_awake: bool,
}

impl<'a> Eligibility<'a> {
    /// Judges a model among workers. An empty name stands for no model.
    #[must_use]
    pub fn of<'w>(
        workers: impl Iterator<Item = &'w Arc<Worker>>,
        model: &'a str,
        unlisted: UnlistedModels,
    ) -> Self {
        let model = (!model.is_empty()).then_some(model);
        // The best of the workers that stay, and of those that are ready and awake.
        let (mut best, mut awake) = (None, None);
        for worker in workers {
            let serves = Some(model.map_or(Serves::Yes, |model| worker.serves(model)));
            if !worker.admin_state().is_final() {
                best = best.max(serves);
            }
            if worker.is_ready() && !worker.facts.is_asleep() {
                awake = awake.max(serves);
            }
            if best.min(awake) == Some(Serves::Yes) {
                break;
            }
        }
        let least = match (best, unlisted) {
            (None | Some(Serves::Denied | Serves::No), UnlistedModels::Pass) => Serves::No,
            (None | Some(Serves::Denied | Serves::No), UnlistedModels::Refuse) => Serves::Unknown,
            (Some(best), _) => best,
        };
        Self {
            model,
            least,
            is_one_awake: awake.is_some_and(|awake| model.is_none() || awake >= least),
        }
    }

    #[must_use]
    pub fn admits(&self, worker: &Worker) -> bool {
        let serves = self.model.is_none_or(|model| worker.serves(model) >= self.least);
        serves && !(self.is_one_awake && worker.facts.is_asleep())
    }
}

impl Fleet {
    /// Returns whether requests for a model are refused: some worker is healthy, the models of every healthy worker are
    /// known, and no worker serves the model, nor accepts it as an unlisted one. A model whose workers are all down is
    /// not refused.
    #[must_use]
    pub fn lacks(&self, model: &str, unlisted: UnlistedModels) -> bool {
        let workers = self.workers();
        let lacks = |worker: &Arc<Worker>| match worker.serves(model) {
            Serves::Denied => true,
            Serves::No => unlisted == UnlistedModels::Refuse,
            Serves::Unknown => !worker.is_well(),
            Serves::Base | Serves::Yes => false,
        };
        let mut present = workers
            .iter()
            .filter(|worker| worker.admin_state() != AdminState::Gone);
        workers.iter().any(|worker| worker.is_well()) && present.all(lacks)
    }
}
