//! Converts Kubernetes objects to workers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use config::{Port, Scheme, Template};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::state::{DiscoveredWorker, Found, MAX_NAME, shortened};

pub(super) const PREFIX: &str = "worker.tailroute.io/";
const PORT: &str = "port";
const MAX_OBJECT_NAME: usize = 253;
/// Maximum length of a resource version; etcd's have at most 20 digits.
pub(super) const MAX_VERSION: usize = 128;

pub(super) trait Object:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
    const RESOURCE: &'static str;

    fn endpoints(&self, rules: &Rules<'_>) -> Vec<SliceEndpoint>;
}

/// Checks metadata that is stored or sent with the next watch. Returns the name.
pub(super) fn check(meta: &ObjectMeta) -> Result<&str, String> {
    let name = meta.name.as_deref().unwrap_or_default();
    let version = meta.resource_version.as_deref().unwrap_or_default();
    if name.is_empty() {
        return Err("an object has no name".to_owned());
    }
    if name.len() > MAX_OBJECT_NAME {
        return Err(format!("the name of an object has {} bytes", name.len()));
    }
    if version.len() > MAX_VERSION {
        return Err(format!("a resourceVersion has {} bytes", version.len()));
    }
    Ok(name)
}

pub(super) fn annotated(meta: &ObjectMeta) -> BTreeMap<String, String> {
    let annotations = meta.annotations.iter().flatten();
    let ours = annotations.filter_map(|(name, text)| Some((name.strip_prefix(PREFIX)?, text)));
    ours.map(|(name, text)| (name.to_owned(), text.clone())).collect()
}

pub(super) fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

pub(super) fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok()
}

#[derive(Clone, Debug)]
pub(super) struct SliceEndpoint {
    pub(super) name: String,
    /// Workers of the endpoint, one per rank, or the reason of a refusal.
    pub(super) workers: Result<Vec<config::Worker>, String>,
    pub(super) ready: bool,
    /// Precedence among endpoints of one name; the lowest wins.
    rank: (bool, String),
}

pub(super) struct Rules<'a> {
    pub(super) port: Option<&'a Port>,
    scheme: Scheme,
    template: &'a Template,
}

/// An object's data about one worker; `says` holds its annotations without their prefix.
pub(super) struct Spoken<'a> {
    pub(super) pod: Option<&'a str>,
    pub(super) address: &'a str,
    pub(super) says: BTreeMap<String, String>,
    pub(super) ready: bool,
}

impl<'a> Rules<'a> {
    pub(super) fn new(settings: &'a config::Kubernetes, template: &'a Template) -> Self {
        Self {
            port: settings.port.as_ref(),
            scheme: settings.scheme,
            template,
        }
    }

    /// Converts an object's data to an endpoint; `find` resolves the configured or annotated port.
    pub(super) fn endpoint(
        &self,
        mut spoken: Spoken<'_>,
        find: impl FnOnce(Option<&Port>) -> Result<u16, String>,
    ) -> SliceEndpoint {
        let said = spoken.says.remove(PORT);
        let port = said.map(|text| {
            Port::read(text.trim())
                .ok_or_else(|| format!("{PREFIX}{PORT}: expected a port's name or number, found {text:?}"))
        });
        let port = match port.transpose() {
            Ok(said) => find(said.as_ref().or(self.port)),
            Err(why) => Err(why),
        };
        let text = shortened(spoken.address);
        let address = address(&text);
        let named = |port: u16| match (spoken.pod, &address) {
            (Some(pod), _) if pod.len() <= MAX_NAME => pod.to_owned(),
            (_, Ok(IpAddr::V6(address))) => format!("[{address}]:{port}"),
            _ => format!("{text}:{port}"),
        };
        let name = named(*port.as_ref().unwrap_or(&0));
        let workers = match (&address, port) {
            (Ok(address), Ok(port)) => self.workers(&name, *address, port, &spoken.says),
            (Err(why), _) => Err(why.clone()),
            (_, Err(why)) => Err(why),
        };
        SliceEndpoint {
            rank: (address.is_ok_and(|address| address.is_ipv6()), text),
            name,
            workers: workers.map_err(|why| shortened(&why)),
            ready: spoken.ready,
        }
    }

    fn workers(
        &self,
        name: &str,
        address: IpAddr,
        port: u16,
        says: &BTreeMap<String, String>,
    ) -> Result<Vec<config::Worker>, String> {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        let url = format!("{scheme}://{}", std::net::SocketAddr::from((address, port)));
        self.template
            .workers(name, &url, says, PREFIX)
            .map_err(|problems| in_words(&problems))
    }
}

/// Formats problems without positions, since there is no file.
pub(crate) fn in_words(problems: &config::Problems) -> String {
    let told = problems.iter().map(|problem| {
        let hint = problem
            .hint
            .iter()
            .map(|hint| format!("; {hint}"))
            .collect::<String>();
        match problem.path.as_str() {
            "" => format!("{}{hint}", problem.what),
            path => format!("{path}: {}{hint}", problem.what),
        }
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Parses a worker's address. Link-local addresses are refused, because they reach the machine's cloud metadata
/// service.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not an IP address"))?;
    // An IPv4-mapped IPv6 address connects as IPv4.
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if link_local || address.is_multicast() || address.is_unspecified() {
        return Err(format!("{address} is not a usable worker address"));
    }
    Ok(address)
}

/// Merges the workers of all objects. An endpoint in two slices is ready if it is in either. IPv4 takes precedence.
pub(super) fn gather<'a>(endpoints: impl Iterator<Item = &'a SliceEndpoint>) -> Found {
    let mut by_name: BTreeMap<&str, (&SliceEndpoint, bool)> = BTreeMap::new();
    for endpoint in endpoints {
        let kept = by_name
            .entry(&endpoint.name)
            .or_insert((endpoint, endpoint.ready));
        if endpoint.rank < kept.0.rank {
            *kept = (endpoint, endpoint.ready);
        } else if endpoint.rank == kept.0.rank {
            kept.1 |= endpoint.ready;
        }
    }
    let mut found = Found::default();
    for (name, (endpoint, ready)) in by_name {
        match &endpoint.workers {
            Ok(workers) => {
                for spec in workers {
                    let (name, spec) = (spec.name.clone(), spec.clone());
                    found.workers.insert(name, DiscoveredWorker { spec, ready });
                }
            }
            Err(why) => found.refused.push(name, why),
        }
    }
    found
}

#[cfg(test)]
mod tests;
