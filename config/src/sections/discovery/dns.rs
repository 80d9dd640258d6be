//! Discovery by SRV records of the DNS: `[discovery.dns]`.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::{LONGEST_NAME, check_list};
use super::scheme::Scheme;
use crate::sections::as_written::AsSeconds;
use crate::sections::checker::Checker;

/// Workers listed by SRV records. DNS is polled, since it sends no notification of changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Dns", bound = "Self: Default, Server: Serialize + JsonSchema")]
pub struct Dns<Server = Option<SocketAddr>> {
    /// Names of the records, as in `_http._tcp.vllm.inference.svc.cluster.local`. Empty: none.
    #[serde(rename = "srv")]
    pub names: Vec<String>,
    /// Shortest time between two queries, in seconds. Records are kept for their time to live, five minutes at most.
    #[serde(rename = "interval_s", with = "AsSeconds")]
    #[schemars(range(min = 0.05, max = 3_600))]
    pub interval: Duration,
    /// Seconds to wait for a response before the next server is queried.
    #[serde(rename = "timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.05, max = 60))]
    pub timeout: Duration,
    /// Address and port of the DNS server, as in `10.96.0.10:53`. Empty: those of `/etc/resolv.conf`.
    pub server: Server,
    /// Scheme of the workers' urls. `https` connects by the name in the record, `http` by its address.
    pub scheme: Scheme,
}

impl Default for Dns<String> {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            server: String::new(),
            scheme: Scheme::default(),
        }
    }
}

impl Dns<String> {
    /// Checks the section; `None` if there are no names.
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Option<Dns> {
        let path = |key: &str| format!("discovery.dns.{key}");
        for (at, name) in self.names.iter().enumerate() {
            if !is_name(name) {
                let what = format!(
                    "expected a name such as _http._tcp.vllm.inference.svc.cluster.local, found {name:?}"
                );
                checker.report(&format!("{}[{at}]", path("srv")), what, None);
            }
        }
        check_list(&self.names, &path("srv"), checker);
        let server = (!self.server.is_empty()).then(|| checker.address(&path("server"), &self.server));
        (!self.names.is_empty()).then_some(Dns {
            names: self.names,
            interval: self.interval,
            timeout: self.timeout,
            server,
            scheme: self.scheme,
        })
    }
}

fn is_name(text: &str) -> bool {
    let is_label =
        |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic());
    let bare = text.strip_suffix('.').unwrap_or(text);
    bare.len() <= LONGEST_NAME && bare.split('.').all(is_label)
}
