pub(super) use policy::text::{count, counted, ms};
use serde_json::Value;

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

pub(crate) fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
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
    let ms = unix_ms.as_f64().map_or(0, |ms| ms.max(0.0) as i64);
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

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

/// Compares a slow worker with its baseline by the time of a typical prompt, which all parts of its cost make up.
pub(super) fn slowness(slow: &Value) -> String {
    let against = match text(slow, "against") {
        "fleet" => "the fleet's median",
        _ => "its own past",
    };
    format!(
        "a typical prompt takes {} instead of {}, {:.1} times as long as in {against}",
        ms(number(slow, "typical_prompt_ms")),
        ms(number(slow, "baseline_typical_prompt_ms")),
        number(slow, "factor"),
    )
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
    fn numbers_have_units() {
        assert_eq!([12, 1536, 3 << 20].map(bytes), ["12 B", "1.5 KiB", "3.0 MiB"]);
        assert_eq!((share(1.0, 8.0), share(0.0, 0.0)), ("12.5 %".into(), "-".into()));
    }
}
