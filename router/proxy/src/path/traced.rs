//! Trace descriptions of the pipeline's types.

use std::sync::Arc;
use std::time::Instant;

use telemetry::traces::{
    AnswerFacts, ChoiceFacts, DescribeChoice, DescribeTurn, Stage, TraceUsage, TurnFacts,
};

use super::select::Choice;
use super::turn::Turn;
use fleet::Worker;
use protocol::watch::ResponseReport;

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

pub(super) fn answer_facts(seen: ResponseReport) -> AnswerFacts {
    AnswerFacts {
        usage: seen.usage.map(|usage| TraceUsage {
            prompt: usage.prompt,
            completion: usage.completion,
            cached: usage.cached,
        }),
        finish: seen.finish,
    }
}
