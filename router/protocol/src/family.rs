//! Families of APIs, by the format of their errors.

/// Family of a request's API, which determines the format of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's API, and all others that are not Anthropic's.
    #[default]
    OpenAi,
    /// Anthropic's Messages API.
    Anthropic,
}

impl Family {
    /// Returns the family of the API at a path.
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some("") => Self::Anthropic,
            Some(rest) if rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_by_the_path() {
        assert_eq!(Family::of("/v1/messages"), Family::Anthropic);
        assert_eq!(Family::of("/v1/messages/count_tokens"), Family::Anthropic);
        assert_eq!(Family::of("/v1/messagesx"), Family::OpenAi);
        assert_eq!(Family::of("/v1/chat/completions"), Family::OpenAi);
    }
}
