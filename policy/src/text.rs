//! Numbers as people read them, for sentences that the router and its tools print.

/// Formats a whole number with commas: `5,136`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with its noun: `1 turn`, `5,136 tokens`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", count(number)),
    }
}

/// Formats a duration of this many milliseconds: `3.2 ms`, `403 ms`, `12.5 s`.
#[must_use]
pub fn ms(ms: f64) -> String {
    match ms.abs() {
        short if short < 9.95 => format!("{ms:.1} ms"),
        middling if middling < 9_999.5 => format!("{} ms", signed(ms)),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

fn signed(whole: f64) -> String {
    let sign = if whole < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(whole.abs().round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_units() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0.04, -3.25, 403.4, -1_500.0, 12_345.0].map(ms),
            ["0.0 ms", "-3.2 ms", "403 ms", "-1,500 ms", "12.3 s"]
        );
        assert_eq!(
            [1, 2].map(|number| counted(number, "turn")),
            ["1 turn", "2 turns"]
        );
    }
}
