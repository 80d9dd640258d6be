//! Per model: tokens per byte, and template tokens between messages. Names that do not [fit](names::is_fit) share one.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::RwLock;
use policy::estimate::{MediaTokens, TokensPerByte};
use policy::fingerprint::MediaPart;
use policy::units::Tokens;

use protocol::names;

const MODELS: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Upper bound on the template's tokens between two messages.
const MAX_GAP: u64 = 32;

/// Conversion of a model's text to tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) ratio: f64,
    /// Template tokens between a reply and the next message, whatever its role.
    pub(super) gap: u64,
    /// Template tokens already counted in a response that ended by itself: its end mark.
    pub(super) end_mark: u64,
    pub(super) media: MediaTokens,
}

impl Ratio {
    /// Returns the tokens between the last counted token of a reply and the next message.
    pub(super) fn after(self, ended: bool) -> u64 {
        self.gap - if ended { self.end_mark } else { 0 }
    }
}

#[derive(Debug)]
struct Model {
    ratio: TokensPerByte,
    gap: u64,
    /// Whether a worker measured the gap; otherwise it is inferred from reports.
    told: bool,
    end_mark: u64,
    media: MediaTokens,
}

impl Model {
    fn new(ratio: TokensPerByte) -> Self {
        Self {
            ratio,
            gap: 0,
            told: false,
            end_mark: 0,
            media: MediaTokens::PRIOR,
        }
    }
}

#[derive(Debug)]
pub(super) struct Models {
    known: RwLock<LruCache<String, Model>>,
    initial: f64,
}

impl Models {
    pub(super) fn new(initial: f64) -> Self {
        Self {
            known: RwLock::new(LruCache::new(MODELS)),
            initial,
        }
    }

    pub(super) fn of(&self, model: &str) -> Ratio {
        let model = names::kept(model);
        let known = self.known.read();
        let unknown = Ratio {
            ratio: self.initial,
            gap: 0,
            end_mark: 0,
            media: MediaTokens::PRIOR,
        };
        known.peek(model).map_or(unknown, |model| Ratio {
            ratio: model.ratio.ratio(),
            gap: model.gap,
            end_mark: model.end_mark,
            media: model.media,
        })
    }

    pub(super) fn counted(&self, model: &str, bytes: u64, tokens: Tokens) {
        self.learn(model, |known| known.ratio.observe(bytes, tokens));
    }

    /// Learns the tokens of media, all of one kind, from `counted` tokens of which `text` are estimated for the text.
    pub(super) fn counted_media(&self, model: &str, media: &[MediaPart], counted: Tokens, text: Tokens) {
        let Some(first) = media.first() else { return };
        if media.iter().all(|part| part.medium == first.medium) {
            let count = media.len() as u64;
            self.learn(model, |known| {
                known.media.observe(first.medium, count, counted, text)
            });
        }
    }

    fn learn(&self, model: &str, learn: impl FnOnce(&mut Model)) {
        let model = names::kept(model);
        let mut known = self.known.write();
        if let Some(known) = known.get_mut(model) {
            learn(known);
        } else {
            let mut new = Model::new(TokensPerByte::new(self.initial));
            learn(&mut new);
            known.put(model.to_owned(), new);
        }
    }

    pub(super) fn has_measured_gap(&self, model: &str) -> bool {
        let model = names::kept(model);
        self.known.read().peek(model).is_some_and(|model| model.told)
    }

    pub(super) fn set_measured_gap(&self, model: &str, gap: u64) {
        self.learn(model, |known| {
            known.gap = gap.min(MAX_GAP);
            known.end_mark = known.gap.min(1);
            known.told = true;
        });
    }

    /// Extends the template gap by `more` tokens that a report showed.
    pub(super) fn widen(&self, model: &str, more: u64) {
        let model = names::kept(model);
        if let Some(model) = self.known.write().get_mut(model) {
            if model.told {
                // The surplus is the end mark of a response, which the engine does not count.
                model.end_mark = 0;
            } else {
                model.gap = (model.gap + more).min(MAX_GAP);
            }
        }
    }

    pub(super) fn all(&self) -> Vec<(String, f64, u64)> {
        let known = self.known.read();
        let entries = known.iter().rev();
        entries
            .map(|(name, model)| (name.clone(), model.ratio.ratio(), model.gap))
            .collect()
    }

    /// Restores a model's values, unless some are already known.
    pub(super) fn restore(&self, name: &str, ratio: f64, gap: u64) {
        let name = names::kept(name);
        let mut known = self.known.write();
        if !known.contains(name) {
            let model = Model {
                gap: gap.min(MAX_GAP),
                ..Model::new(TokensPerByte::new(ratio))
            };
            known.put(name.to_owned(), model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_fit_is_not_kept() {
        let models = Models::new(0.25);
        let long = "m".repeat(1 << 20);
        models.counted(&long, 100, Tokens(50));
        models.set_measured_gap(&long, 3);
        models.restore("a\nb", 0.5, 3);
        assert_eq!(models.all().len(), 1);
        assert_eq!(models.all()[0].0, names::OTHER);
        assert!(models.has_measured_gap(&long));
    }
}
