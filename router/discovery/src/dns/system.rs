//! The system's name servers and search list: `/etc/resolv.conf`.

use std::net::{IpAddr, SocketAddr};

pub(super) const FILE: &str = "/etc/resolv.conf";
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of servers, as in C libraries.
const MAX_SERVERS: usize = 3;
const MAX_DOMAINS: usize = 8;
const PORT: u16 = 53;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct System {
    pub(super) servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
}

impl System {
    pub(super) fn only(server: SocketAddr) -> Self {
        Self {
            servers: vec![server],
            search: Vec::new(),
            ndots: 1,
        }
    }

    /// Parses the file. Unknown lines are skipped.
    pub(super) fn read(text: &str) -> Self {
        let mut system = Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    system
                        .servers
                        .extend(address.map(|address| SocketAddr::from((address, PORT))));
                }
                Some("search" | "domain") => {
                    system.search = words.take(MAX_DOMAINS).map(str::to_owned).collect()
                }
                Some("options") => {
                    let ndots = words.find_map(|word| word.strip_prefix("ndots:"));
                    system.ndots = ndots.and_then(|count| count.parse().ok()).unwrap_or(system.ndots);
                }
                _ => {}
            }
        }
        system.servers.truncate(MAX_SERVERS);
        system
    }

    /// Returns the candidates for a name, in the order of lookups.
    pub(super) fn names(&self, name: &str) -> Vec<String> {
        if let Some(whole) = name.strip_suffix('.') {
            return vec![whole.to_owned()];
        }
        let mut names: Vec<String> = self
            .search
            .iter()
            .map(|domain| format!("{name}.{}", domain.trim_matches('.')))
            .collect();
        let whole = name.to_owned();
        if name.matches('.').count() >= self.ndots {
            names.insert(0, whole);
        } else {
            names.push(whole);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_searched_as_a_pod_searches_them() {
        let text = "search inference.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\nnameserver nonsense\n\
                    nameserver fd00::a\noptions ndots:5 edns0\n# comment\n";
        let system = System::read(text);
        let servers = ["10.96.0.10:53", "[fd00::a]:53"].map(|server| server.parse().unwrap());
        assert_eq!(system.servers, servers);
        assert_eq!(
            system.names("_http._tcp.vllm"),
            [
                "_http._tcp.vllm.inference.svc.cluster.local",
                "_http._tcp.vllm.svc.cluster.local",
                "_http._tcp.vllm"
            ]
        );
        assert_eq!(system.names("a.b."), ["a.b"]);
        assert_eq!(System::only(servers[0]).names("_http._tcp.a"), ["_http._tcp.a"]);
        assert_eq!(System::read("").servers, []);
    }
}
