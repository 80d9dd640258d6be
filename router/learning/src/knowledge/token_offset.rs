//! The position of a message's end in tokens.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenOffset {
    /// Counted tokens up to the start of the next message: of a prompt, or of a reply that a later turn continued.
    Counted(u64),
    /// Counted tokens up to the end of the conversation's last reply. The engine holds one token less (the keys and
    /// values of the last one are never computed) and nothing of what the template puts after a reply.
    Tip {
        total: u64,
        /// Whether the last token is an end mark, which is not text.
        ended: bool,
    },
    /// Tokens estimated by proportion, at the end of a shared system prompt. A report that contradicts it moves it.
    Guessed(u64),
}

/// A [`TokenOffset`] in one word: each prompt looks up dozens, in a table larger than the processor's caches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed(pub(super) u64);

impl Packed {
    const KINDS: u32 = 2;
    const COUNTED: u64 = 0;
    const GUESSED: u64 = 1;
    const TIP: u64 = 2;
    const ENDED_TIP: u64 = 3;

    pub(super) fn offset(self) -> TokenOffset {
        let tokens = self.0 >> Self::KINDS;
        match self.0 & ((1 << Self::KINDS) - 1) {
            Self::COUNTED => TokenOffset::Counted(tokens),
            Self::GUESSED => TokenOffset::Guessed(tokens),
            kind => TokenOffset::Tip {
                total: tokens,
                ended: kind == Self::ENDED_TIP,
            },
        }
    }
}

impl From<TokenOffset> for Packed {
    fn from(place: TokenOffset) -> Self {
        let (tokens, kind) = match place {
            TokenOffset::Counted(tokens) => (tokens, Self::COUNTED),
            TokenOffset::Guessed(tokens) => (tokens, Self::GUESSED),
            TokenOffset::Tip { total, ended: false } => (total, Self::TIP),
            TokenOffset::Tip { total, ended: true } => (total, Self::ENDED_TIP),
        };
        // Clamps what a worker reports; no prompt has that many tokens.
        Self(tokens.min(u64::MAX >> Self::KINDS) << Self::KINDS | kind)
    }
}
