//! Generated text: words drawn deterministically from (prompt, seed), one token each.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Words of at most five letters after the space, so that each is exactly one piece of the tokenizer.
const WORDS: [&str; 48] = [
    " about", " after", " again", " all", " and", " as", " at", " be", " both", " but", " by", " can",
    " each", " first", " for", " from", " gives", " goes", " has", " here", " holds", " how", " in", " into",
    " is", " it", " keeps", " last", " less", " like", " makes", " more", " next", " not", " now", " of",
    " on", " once", " one", " or", " same", " takes", " that", " the", " then", " this", " to", " with",
];

/// Two-, three- and four-byte characters, still one piece each.
const MULTIBYTE: [&str; 8] = [" café", " naïf", " né", " 日", " 本", " 🙂", " Ω", " où"];

/// Returns the word at `index` of the reply drawn by `seed`. The first one has no leading space, as in models' replies.
pub fn word(seed: u64, index: u32, multibyte: bool) -> &'static str {
    let draw = xxh3_64_with_seed(&index.to_le_bytes(), seed);
    let pick = (draw >> 8) as usize;
    let word = if multibyte && draw.is_multiple_of(8) {
        MULTIBYTE[pick % MULTIBYTE.len()]
    } else {
        WORDS[pick % WORDS.len()]
    };
    if index == 0 { word.trim_start() } else { word }
}

/// Returns the words of `range`, joined.
pub fn words(seed: u64, range: std::ops::Range<u32>, multibyte: bool) -> String {
    let mut text = String::with_capacity(range.len() * 6);
    range.for_each(|index| text.push_str(word(seed, index, multibyte)));
    text
}

/// Returns the tokens generated and the bytes of text sent if a stop string ends the reply within `limit` tokens.
pub fn stop_at(seed: u64, limit: u32, multibyte: bool, stops: &[String]) -> Option<(u32, usize)> {
    let mut text = String::new();
    for index in 0..limit {
        let from = text.len();
        text.push_str(word(seed, index, multibyte));
        let hit = stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| {
            // A stop string may have begun in an earlier word.
            let mut begin = from.saturating_sub(stop.len());
            while !text.is_char_boundary(begin) {
                begin -= 1;
            }
            text[begin..].find(stop.as_str()).map(|at| begin + at)
        });
        if let Some(end) = hit.min() {
            return Some((index + 1, end));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_may_span_words() {
        let whole = words(3, 0..20, true);
        let stop = whole[whole.find(' ').unwrap() - 1..]
            .chars()
            .take(4)
            .collect::<String>();
        let (tokens, bytes) = stop_at(3, 20, true, std::slice::from_ref(&stop)).unwrap();
        assert_eq!(whole.find(&stop), Some(bytes));
        assert!(words(3, 0..tokens, true).len() >= bytes + stop.len());
        assert_eq!(stop_at(3, 20, true, &["never said".to_owned()]), None);
    }

    #[test]
    fn multibyte_replies_contain_characters_of_every_length() {
        let whole = words(1, 0..500, true);
        for bytes in 1..=4 {
            assert!(whole.chars().any(|char| char.len_utf8() == bytes), "{bytes}");
        }
        assert!(words(1, 0..500, false).is_ascii());
    }
}
