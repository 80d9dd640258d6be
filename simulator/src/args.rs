//! Parsers for numbers and times on the command line.

/// Parses a finite number of at least 0. Fails with a description of the expected value.
pub fn non_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// Parses a finite number above 0. Fails with a description of the expected value.
pub fn positive(text: &str) -> Result<f64, String> {
    non_negative(text).and_then(|value| {
        if value > 0.0 {
            Ok(value)
        } else {
            Err("must not be 0".to_owned())
        }
    })
}

/// Parses a share: at least 0 and below 1. Fails with a description of the expected value.
pub fn share(text: &str) -> Result<f64, String> {
    non_negative(text).and_then(|value| {
        if value < 1.0 {
            Ok(value)
        } else {
            Err("must be below 1".to_owned())
        }
    })
}

/// Longest accepted time, in seconds.
const MOST_SECONDS: f64 = 1e9;

/// Parses a time above 0 into seconds: a number alone, or one with `ms`, `s`, `m`, `h` or `d`. Fails with a description
/// of the expected value.
pub fn seconds(text: &str) -> Result<f64, String> {
    let expected =
        || format!("expected a time such as 90s, 10m or 2h, not {text:?}; a number alone is seconds");
    let unit_at = text
        .find(|letter: char| letter.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = match unit {
        "ms" => 1e-3,
        "" | "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(expected()),
    };
    let seconds = number.trim_end().parse::<f64>().map_err(|_| expected())? * unit;
    match seconds > 0.0 && seconds <= MOST_SECONDS {
        true => Ok(seconds),
        false => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        for (text, expected) in [
            ("600", 600.0),
            ("20s", 20.0),
            ("10m", 600.0),
            ("10 min", 600.0),
            ("1.5h", 5_400.0),
            ("2d", 172_800.0),
            ("500ms", 0.5),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in [
            "", "s", "0", "0s", "-5", "-1m", "5x", "inf", "nan", "1e300", "1h30", "ten",
        ] {
            assert!(seconds(text).unwrap_err().contains("such as 90s"), "{text}");
        }
    }
}
