//! Formats of the metrics page: OpenMetrics with exemplars, or Prometheus's older text format without.

use std::fmt;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// Format of the metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`.
    Text,
    /// `application/openmetrics-text`.
    OpenMetrics,
}

impl Format {
    /// Returns the format for an `Accept` header: OpenMetrics if that is named, as Prometheus does.
    pub fn accepted(accept: &str) -> Self {
        let mut kinds = accept
            .split(',')
            .map(|kind| kind.split(';').next().unwrap_or_default());
        if kinds.any(|kind| kind.trim().eq_ignore_ascii_case("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Renders the page. Fails if a metric cannot be written.
    pub(super) fn write(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, registry)?;
        Ok(match self {
            Self::OpenMetrics => page,
            Self::Text => older(&page),
        })
    }
}

/// Converts the page to the older format: a counter is named like its sample; there are no exemplars and no end mark.
fn older(page: &str) -> String {
    let mut older = String::with_capacity(page.len());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        if let Some((name, help)) = help {
            let typed = lines.next().unwrap_or_default();
            let kind = typed.rsplit(' ').next().unwrap_or_default();
            let ending = if kind == "counter" { "_total" } else { "" };
            older.push_str(&format!(
                "# HELP {name}{ending} {help}\n# TYPE {name}{ending} {kind}\n"
            ));
        } else if line != "# EOF" {
            // The pattern cannot occur in a label's value, where quotation marks are escaped.
            let sample = line.rfind(" # {trace_id=\"").map_or(line, |at| &line[..at]);
            older.push_str(sample);
            older.push('\n');
        }
    }
    older
}
