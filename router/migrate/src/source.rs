//! The routers that can be migrated from.

use std::fmt;

use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::table::OptionRow;
use crate::{family, nginx, production_stack, sglang, vllm_router};

/// A router that can be migrated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// sglang-router, and SMG, its successor.
    SglangRouter,
    /// The Rust router of the vLLM project.
    VllmRouter,
    /// The router of vLLM's production-stack.
    ProductionStack,
    /// nginx with an upstream of OpenAI-compatible workers.
    Nginx,
}

impl Source {
    /// Every source, in the order of the documentation.
    pub const ALL: [Self; 4] = [
        Self::SglangRouter,
        Self::VllmRouter,
        Self::ProductionStack,
        Self::Nginx,
    ];

    /// Returns the name, as `--from` takes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SglangRouter => "sglang-router",
            Self::VllmRouter => "vllm-router",
            Self::ProductionStack => "production-stack",
            Self::Nginx => "nginx",
        }
    }

    pub(crate) const fn tables(self) -> &'static [&'static [OptionRow]] {
        match self {
            Self::SglangRouter => &[family::TABLE, sglang::TABLE],
            Self::VllmRouter => &[family::TABLE, vllm_router::TABLE],
            Self::ProductionStack => &[production_stack::TABLE],
            Self::Nginx => &[nginx::TABLE],
        }
    }

    pub(crate) fn rows(self) -> impl Iterator<Item = &'static OptionRow> {
        self.tables().iter().copied().flatten()
    }

    pub(crate) fn row(self, name: &str) -> Option<&'static OptionRow> {
        self.rows().find(|row| row.name == name)
    }

    /// Writes the keys that depend on several options.
    pub(crate) fn finish(self, draft: &mut ConfigDraft) -> Result<(), Error> {
        match self {
            Self::SglangRouter => family::finish(draft, &sglang::DEFAULTS),
            Self::VllmRouter => family::finish(draft, &vllm_router::DEFAULTS),
            Self::ProductionStack => production_stack::finish(draft),
            Self::Nginx => Ok(()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
