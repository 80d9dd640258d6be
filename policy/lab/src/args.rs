//! Parsers for numbers on the command line.

/// Parses a finite number of at least 0. Fails with what was expected.
pub fn non_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// Parses a finite number above 0. Fails with what was expected.
pub fn positive(text: &str) -> Result<f64, String> {
    non_negative(text).and_then(|value| {
        if value > 0.0 {
            Ok(value)
        } else {
            Err("must not be 0".to_owned())
        }
    })
}

/// Parses a share: at least 0 and below 1. Fails with what was expected.
pub fn share(text: &str) -> Result<f64, String> {
    non_negative(text).and_then(|value| {
        if value < 1.0 {
            Ok(value)
        } else {
            Err("must be below 1".to_owned())
        }
    })
}
