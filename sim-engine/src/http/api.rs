//! The APIs by which the engine generates text.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// OpenAI's `/v1/chat/completions`.
    Chat,
    Completions,
    Messages,
    Responses,
}

impl Api {
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            "/v1/messages" => Some(Self::Messages),
            "/v1/responses" => Some(Self::Responses),
            _ => None,
        }
    }
}

/// The family of APIs whose errors a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    OpenAi,
    Anthropic,
}

impl Family {
    pub(super) fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some("") => Self::Anthropic,
            Some(below) if below.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}
