//! The length of a reply, and the reason why it ends.

use std::sync::Arc;

use super::{Fields, Finish, Stop};
use crate::config::EngineConfig;
use crate::script::Script;
use crate::text;

pub(super) struct Extent {
    pub(super) output_tokens: u32,
    pub(super) finish: Finish,
    pub(super) cut: Option<usize>,
    pub(super) script: Option<Arc<Script>>,
}

impl Fields {
    pub(super) fn extent(&self, config: &EngineConfig, wanted: Option<u32>, seed: u64) -> Extent {
        let default = config.default_output_tokens;
        // Without a limit in the request the model ends the reply itself.
        let natural_end = match wanted {
            None => !self.ignore_eos.unwrap_or(false),
            Some(wanted) => self.ends_by_itself && wanted > default,
        };
        let longest = wanted.unwrap_or(default);
        let limit = if natural_end { default } else { longest };
        if let Some(script) = self.script(seed, limit, config.multibyte) {
            let (output_tokens, finish) = if script.len() <= longest {
                (script.len(), Finish::ToolCalls)
            } else {
                (longest, Finish::Length)
            };
            let script = Some(Arc::new(script));
            return Extent {
                output_tokens,
                finish,
                cut: None,
                script,
            };
        }
        let stops = match &self.stop {
            None => &[][..],
            Some(Stop::One(stop)) => std::slice::from_ref(stop),
            Some(Stop::Many(stops)) => stops,
        };
        let stopped = if stops.is_empty() {
            None
        } else {
            text::stop_at(seed, limit, config.multibyte, stops)
        };
        let (output_tokens, cut) = stopped.map_or((limit, None), |(tokens, bytes)| (tokens, Some(bytes)));
        let finish = if natural_end || cut.is_some() {
            Finish::Stop
        } else {
            Finish::Length
        };
        Extent {
            output_tokens,
            finish,
            cut,
            script: None,
        }
    }

    /// Returns the tool calls of the reply. They are made only where `tool_choice` names a function or is `required`:
    /// to the first two functions, or to one if parallel calls are disabled.
    fn script(&self, seed: u64, limit: u32, multibyte: bool) -> Option<Script> {
        let named = self.tool_choice.as_ref()?;
        let names: Vec<&str> = match named["function"]["name"].as_str() {
            Some(name) => vec![name],
            None if named == "required" => {
                let most = if self.parallel_tool_calls == Some(false) {
                    1
                } else {
                    2
                };
                let tools = self.tools.as_ref()?.as_array()?.iter();
                tools
                    .filter_map(|tool| tool["function"]["name"].as_str())
                    .take(most)
                    .collect()
            }
            None => return None,
        };
        (!names.is_empty()).then(|| Script::new(seed, limit, multibyte, &names))
    }
}
