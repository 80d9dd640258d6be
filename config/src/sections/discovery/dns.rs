//! Discovery by SRV records of the DNS: `[discovery.dns]`.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::checker::Checker;
use super::{LONGEST_NAME, Scheme, few};

/// Workers listed by SRV records. DNS is polled, since it sends no notification of changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Dns")]
pub(crate) struct DnsSection {
    /// Names of the records, as in `_http._tcp.vllm.inference.svc.cluster.local`. Empty: none.
    pub srv: Vec<String>,
    /// Shortest time between two queries, in seconds. Records are kept for their time to live, five minutes at most.
    #[schemars(range(min = 0.05, max = 3_600))]
    pub interval_s: f64,
    /// Seconds to wait for a response before the next server is queried.
    #[schemars(range(min = 0.05, max = 60))]
    pub timeout_s: f64,
    /// Address and port of the DNS server, as in `10.96.0.10:53`. Empty: those of `/etc/resolv.conf`.
    pub server: String,
    /// Scheme of the workers' urls. `https` connects by the name in the record, `http` by its address.
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

/// DNS queries for workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Dns {
    /// Names of SRV records; never empty.
    pub names: Vec<String>,
    /// Shortest time between two queries; positive.
    pub interval: Duration,
    /// Time limit for a response; positive.
    pub timeout: Duration,
    /// DNS server; `None`: those of the system.
    pub server: Option<SocketAddr>,
    /// Scheme of the workers' urls.
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
