//! Keys that depend on several options of a source.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::given::ParsedOption;

/// Name of an option, and the value that the source uses without it.
pub(crate) type Default = (&'static str, &'static str);

/// Takes an option. Returns its value or else the default, the text that names it, and whether it was given.
pub(crate) fn value(draft: &mut ConfigDraft, (name, default): Default) -> (ParsedOption, String, bool) {
    match draft.take(name) {
        Some(given) => {
            let shown = given.shown();
            (given, shown, true)
        }
        None => {
            let given = ParsedOption {
                name: name.to_owned(),
                values: vec![default.to_owned()],
                line: None,
                secret: false,
            };
            let shown = format!("{name} {default} (default)");
            (given, shown, false)
        }
    }
}

/// Reads an IP address; `None` for a host name other than `localhost`.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if text == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(text).parse().ok()
}

fn port(given: &ParsedOption) -> Result<u16, Error> {
    let read = given.one().and_then(|text| {
        let port = text.parse::<u16>();
        port.map_err(|_| format!("expected a port from 0 to 65535, found {text:?}"))
    });
    read.map_err(|what| Error::wrong(given.place(), what))
}

pub(crate) fn listen(draft: &mut ConfigDraft, host: Default, port_of: Default) -> Result<(), Error> {
    let (host, host_shown, _) = value(draft, host);
    let (number, port_shown, _) = value(draft, port_of);
    let number = port(&number)?;
    let text = host.one().unwrap_or_default();
    let address = address(text).unwrap_or_else(|| {
        let why = "expected an IP address; the data port listens on every interface";
        draft.note(&host_shown, why);
        Ipv4Addr::UNSPECIFIED.into()
    });
    let listen = SocketAddr::new(address, number).to_string();
    draft.set("server.listen", listen, format!("{host_shown} {port_shown}"));
    Ok(())
}

/// Sets the address of the admin port, which has the metrics. Whoever reaches that port can change the router, so it
/// stays on the loopback interface.
pub(crate) fn metrics(draft: &mut ConfigDraft, host: Default, port_of: Default) -> Result<(), Error> {
    let (host, host_shown, _) = value(draft, host);
    let (number, port_shown, _) = value(draft, port_of);
    let number = port(&number)?;
    let loopback = address(host.one().unwrap_or_default()).filter(IpAddr::is_loopback);
    if loopback.is_none() {
        let why = format!(
            "the port of the metrics also has the admin API, and needs tokens beyond the loopback interface: set \
             admin.tokens_file, admin.open_metrics = true and admin.listen = \"0.0.0.0:{number}\""
        );
        draft.note(&host_shown, why);
    }
    let address = loopback.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let listen = SocketAddr::new(address, number).to_string();
    draft.set("admin.listen", listen, format!("{host_shown} {port_shown}"));
    Ok(())
}

pub(crate) fn kubernetes(
    draft: &mut ConfigDraft,
    (pods, shown): (String, String),
    port: Default,
    namespace: Option<ParsedOption>,
) {
    draft.set("discovery.kubernetes.pods", pods, shown);
    let (port, port_shown, _) = value(draft, port);
    let port = port.one().unwrap_or_default().to_owned();
    draft.set("discovery.kubernetes.port", port, port_shown);
    match namespace.as_ref().map(|given| (given, given.one())) {
        Some((given, Ok(name))) => {
            draft.set("discovery.kubernetes.namespace", name.to_owned(), given.shown());
        }
        // The router's own.
        Some((_, Err(_))) => {}
        None => {
            let why =
                "tailroute watches one namespace, its own by default: set discovery.kubernetes.namespace";
            draft.note("all namespaces are watched", why);
        }
    }
}

pub(crate) fn traces(draft: &mut ConfigDraft, endpoint: &ParsedOption, is_https: bool, from: String) {
    let text = endpoint.one().unwrap_or_default();
    let scheme = if is_https { "https" } else { "http" };
    let url = if text.contains("://") {
        text.to_owned()
    } else {
        format!("{scheme}://{text}")
    };
    draft.set("traces.endpoint", url, from);
}

/// Upper bound of `failure.breaker_pause_s` in seconds.
const LONGEST_FIRST_PAUSE_S: f64 = 3_600.0;

/// Makes keys agree that tailroute compares: pauses of the breaker, and times of the probes.
pub(crate) fn agree(draft: &mut ConfigDraft, probes_every_s: f64) {
    let longest = config::Failure::default().breaker_longest_pause.0 / 1e3;
    let pause = draft.number("failure.breaker_pause_s");
    if let Some(pause) = pause.filter(|pause| (longest..=LONGEST_FIRST_PAUSE_S).contains(pause)) {
        let from = "at least failure.breaker_pause_s";
        draft.set_number("failure.breaker_longest_pause_s", pause, from);
    }
    let default = config::Health::default();
    let timeout = draft.number("health.timeout_ms");
    let interval = draft.number("health.interval_ms");
    match (timeout, interval) {
        (Some(timeout), None) if timeout > default.interval.as_secs_f64() * 1e3 => {
            let from = "the source's own default, since the timeout is at most the interval";
            draft.set_number("health.interval_ms", (probes_every_s * 1e3).max(timeout), from);
        }
        (None, Some(interval)) if interval < default.timeout.as_secs_f64() * 1e3 => {
            draft.set_number("health.timeout_ms", interval, "at most health.interval_ms");
        }
        (Some(timeout), Some(interval)) if timeout > interval => {
            let why = "shortened to the interval between two probes, which must not overlap";
            let from = draft
                .entries
                .get("health.timeout_ms")
                .map(|entry| entry.from.clone());
            let from = from.unwrap_or_else(|| format!("a timeout of {timeout} ms"));
            draft.note(&from, why);
            draft.set_number("health.timeout_ms", interval, format!("{from}, {why}"));
        }
        _ => {}
    }
}

/// Disables salts where there is a single key, since there are no tenants to keep apart.
pub(crate) fn one_key(draft: &mut ConfigDraft) {
    if draft.keys.len() == 1 {
        let from = "one key: no tenants whose cached prefixes must be kept apart";
        draft.set("admission.salt_requests", false, from);
    }
}
