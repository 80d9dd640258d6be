//! Formats of single values.

use serde_json::Value;

/// Returns a field's text, or `-`.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

/// Returns a field's number, or 0.
pub(super) fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

/// Returns the elements of a field's list.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// Formats a setting, without quotes around text.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Formats milliseconds since 1970 as `2026-01-31 12:00:00Z`.
pub(crate) fn time(unix_ms: &Value) -> String {
    let seconds = unix_ms.as_f64().map_or(0, |ms| ms.max(0.0) as u64 / 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a civil date, in 400-year eras that begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!(
        "{:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z",
        era * 400 + year + carry
    )
}

/// Formats a whole number with commas: `5,136`.
pub(super) fn count(number: u64) -> String {
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
pub(super) fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", count(number)),
    }
}

/// Formats a duration of this many milliseconds: `3.2 ms`, `403 ms`, `12.5 s`.
pub(super) fn ms(ms: f64) -> String {
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

/// Formats a share as a percentage.
pub(super) fn share(part: f64, whole: f64) -> String {
    match whole {
        none if none <= 0.0 => "-".to_owned(),
        whole => format!("{:.1} %", part / whole * 100.0),
    }
}

/// Formats bytes: `512 B`, `1.5 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        few if few < 1024.0 => format!("{bytes} B"),
        some if some < 1024.0 * 1024.0 => format!("{:.1} KiB", some / 1024.0),
        many => format!("{:.1} MiB", many / (1024.0 * 1024.0)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_dates() {
        for (unix_s, shown) in [
            (0_u64, "1970-01-01 00:00:00Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_767_225_599, "2025-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(time(&json!(unix_s * 1000)), shown);
            assert_eq!(time(&json!(unix_s as f64 * 1000.0 + 0.25)), shown);
        }
    }

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
        assert_eq!([12, 1536, 3 << 20].map(bytes), ["12 B", "1.5 KiB", "3.0 MiB"]);
        assert_eq!((share(1.0, 8.0), share(0.0, 0.0)), ("12.5 %".into(), "-".into()));
    }
}
