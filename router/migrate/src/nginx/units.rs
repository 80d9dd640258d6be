//! Times and sizes as nginx writes them.

/// Reads a time such as `60`, `90s`, `5m` or `500ms`, in seconds.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    scaled(
        text,
        &[
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3_600.0),
            ("d", 86_400.0),
        ],
    )
}

/// Reads a size such as `8k`, `10m` or `1g`, in bytes.
pub(crate) fn bytes(text: &str) -> Option<f64> {
    scaled(
        &text.to_ascii_lowercase(),
        &[("k", 1024.0), ("m", 1_048_576.0), ("g", 1_073_741_824.0)],
    )
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let unit = units.iter().find(|(name, _)| text.ends_with(name));
    let (number, factor) = match unit {
        Some((name, factor)) => (text.strip_suffix(name)?, *factor),
        None => (text, 1.0),
    };
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(seconds("90"), Some(90.0));
        assert_eq!(seconds("500ms"), Some(0.5));
        assert_eq!(seconds("2h"), Some(7_200.0));
        assert_eq!(bytes("10M"), Some(10_485_760.0));
        assert_eq!((seconds("x"), bytes("-1k"), seconds("")), (None, None, None));
    }
}
