//! How the pipeline's types describe themselves in a request's trace.

use std::sync::Arc;
use std::time::Instant;

use http::Uri;
use telemetry::traces::{
    AnswerFacts, ChoiceFacts, DescribeChoice, DescribeTurn, Stage, Target, TurnFacts, Usage,
};

use super::choose::{Choice, Turn};
use super::watch::Seen;
use crate::fleet::Worker;

impl DescribeTurn for Turn {
    fn facts(&self) -> TurnFacts {
        TurnFacts {
            model: Arc::clone(&self.model),
            conversation: self.session.as_ref().map(|session| Arc::clone(&session.name)),
            objective: self.goal.ttft,
            generates: self.endpoint.generates(),
            conversation_state: if self.last { "last" } else { "open" },
        }
    }
}

impl DescribeChoice for Choice {
    fn facts(&self) -> ChoiceFacts {
        let terms = self.decision.chosen();
        ChoiceFacts {
            worker: Arc::<Worker>::clone(&self.worker),
            decision: self.decision.sequence,
            policy: self.decision.policy.as_str(),
            reason: self.decision.reason.as_str(),
            prompt: self.matched.prompt,
            cached: terms.cached,
            wait: self.view.wait,
            predicted: terms.predicted_ttft(),
        }
    }

    fn stages(&self) -> impl Iterator<Item = (Stage, [Instant; 2])> {
        self.timed()
    }
}

impl Target for Worker {
    fn name(&self) -> &str {
        self.name()
    }

    fn url(&self) -> &Uri {
        &self.spec.url
    }
}

impl From<Seen> for AnswerFacts {
    fn from(seen: Seen) -> Self {
        Self {
            usage: seen.usage.map(|usage| Usage {
                prompt: usage.prompt,
                completion: usage.completion,
                cached: usage.cached,
            }),
            finish: seen.finish,
        }
    }
}
