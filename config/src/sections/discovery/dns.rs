//! Workers that SRV records of the DNS name: `[discovery.dns]`.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::checker::Checker;
use super::{LONGEST_NAME, Scheme, few};

/// Workers that SRV records name. Asked for again and again, since DNS tells nobody of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Dns")]
pub(crate) struct DnsSection {
    /// Names of the records, as in `_http._tcp.vllm.inference.svc.cluster.local`. Empty: none.
    pub srv: Vec<String>,
    /// Seconds between two questions.
    #[schemars(range(min = 0.05, max = 3_600))]
    pub interval_s: f64,
    /// Seconds for an answer, before the next server is asked.
    #[schemars(range(min = 0.05, max = 60))]
    pub timeout_s: f64,
    /// Address and port of the server to ask, as in `10.96.0.10:53`. Empty: those of `/etc/resolv.conf`.
    pub server: String,
    /// How workers are spoken to. `https` goes by the name that the record gives, `http` by its address.
    pub scheme: Scheme,
}

impl Default for DnsSection {
    fn default() -> Self {
        Self {
            srv: Vec::new(),
            interval_s: 5.0,
            timeout_s: 2.0,
            server: String::new(),
            scheme: Scheme::default(),
        }
    }
}

/// What is asked of the DNS.
#[derive(Clone, Debug, PartialEq)]
pub struct Dns {
    /// Names of SRV records; never empty.
    pub names: Vec<String>,
    /// Between two questions; positive.
    pub interval: Duration,
    /// For an answer; positive.
    pub timeout: Duration,
    /// Who is asked; `None`: whom the system asks.
    pub server: Option<SocketAddr>,
    /// How workers are spoken to.
    pub scheme: Scheme,
}

pub(super) fn dns(written: DnsSection, checker: &mut Checker<'_>) -> Option<Dns> {
    let path = |key: &str| format!("discovery.dns.{key}");
    for (at, name) in written.srv.iter().enumerate() {
        let label = |label: &str| {
            (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let bare = name.strip_suffix('.').unwrap_or(name);
        if bare.len() > LONGEST_NAME || !bare.split('.').all(label) {
            let what = format!(
                "expected a name such as _http._tcp.vllm.inference.svc.cluster.local, found {name:?}"
            );
            checker.report(&format!("{}[{at}]", path("srv")), what, None);
        }
    }
    few(&written.srv, &path("srv"), checker);
    let interval = checker.seconds(&path("interval_s"), written.interval_s);
    let timeout = checker.seconds(&path("timeout_s"), written.timeout_s);
    let server = (!written.server.is_empty()).then(|| checker.address(&path("server"), &written.server));
    (!written.srv.is_empty()).then_some(Dns {
        names: written.srv,
        interval,
        timeout,
        server,
        scheme: written.scheme,
    })
}
