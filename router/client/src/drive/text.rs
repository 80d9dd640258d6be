//! Generated text of one word per token, cheap to make and identical where the trace shares blocks.
//!
//! A word is three to five letters: with its space one token for the simulated engine, and one to three in common
//! byte-pair vocabularies. Counts of a real engine come from its `usage`. Those of real sentences would be guesses.

use simulator::fleet::mix;

/// Generates the words of one run. Two runs with different seeds share no text beyond chance.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    seed: u64,
}

impl Words {
    /// Returns a generator whose words depend only on `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Appends the `offset`-th word of `source`, a block or a conversation, after a space unless `out` is empty.
    pub fn push(&self, out: &mut String, source: u64, offset: u64) {
        let mut bits = mix(mix(self.seed ^ source).wrapping_add(offset));
        if !out.is_empty() {
            out.push(' ');
        }
        let letters = 3 + (bits % 3);
        bits >>= 8;
        for _ in 0..letters {
            out.push(char::from(b'a' + (bits % 26) as u8));
            bits /= 26;
        }
    }
}

/// Returns the first `count` words of `text`.
pub fn first_words(text: &str, count: u64) -> &str {
    let mut words = 0;
    let mut inside = false;
    for (at, letter) in text.char_indices() {
        if letter.is_whitespace() {
            if inside && words == count {
                return &text[..at];
            }
            inside = false;
        } else if !inside {
            inside = true;
            words += 1;
            if words > count {
                return text[..at].trim_end();
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, source: u64, count: u64) -> String {
        let mut out = String::new();
        (0..count).for_each(|offset| Words::new(seed).push(&mut out, source, offset));
        out
    }

    #[test]
    fn the_same_block_has_the_same_words_and_another_has_others() {
        assert_eq!(text(1, 7, 50), text(1, 7, 50));
        assert_ne!(text(1, 7, 50), text(1, 8, 50));
        assert_ne!(text(1, 7, 50), text(2, 7, 50));
    }

    #[test]
    fn a_word_and_its_space_are_at_most_six_bytes() {
        let text = text(3, 9, 1000);
        assert_eq!(text.split(' ').count(), 1000);
        assert!(text.split(' ').all(|word| (3..=5).contains(&word.len())));
    }

    #[test]
    fn first_words_cuts_between_words() {
        assert_eq!(first_words("ab  cd\nef", 2), "ab  cd");
        assert_eq!(first_words(" ab cd", 0), "");
        assert_eq!(first_words("ab cd", 9), "ab cd");
        assert_eq!(first_words("äö ß", 1), "äö");
    }
}
