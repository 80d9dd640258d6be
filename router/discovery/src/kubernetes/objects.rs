//! From objects of Kubernetes to workers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use config::{Port, Scheme, Template};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::state::{Found, Named, shortened};

/// The prefix of annotations that describe a worker.
pub(super) const PREFIX: &str = "worker.tailroute.io/";
/// The annotation that names the worker's port.
const PORT: &str = "port";
/// The maximum length of a worker's name. A pod with a longer name goes by its address.
const MAX_NAME: usize = 64;
/// The maximum length of an object's name, as Kubernetes has it.
const MAX_OBJECT_NAME: usize = 253;
/// The maximum length of a version: etcd's are numbers of at most 20 digits.
pub(super) const MAX_VERSION: usize = 128;

/// A kind of object that names workers.
pub(super) trait Object:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The name of the kind in roles.
    const RESOURCE: &'static str;

    /// What the object names.
    fn endpoints(&self, rules: &Rules<'_>) -> Vec<Endpoint>;
}

/// Checks metadata that is kept, or sent back with the next watch, and returns the name.
///
/// # Errors
/// If there is no name, or name or version is longer than any that an API server gives.
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

/// The annotations that describe a worker, without their prefix.
pub(super) fn annotated(meta: &ObjectMeta) -> BTreeMap<String, String> {
    let annotations = meta.annotations.iter().flatten();
    let ours = annotations.filter_map(|(name, text)| Some((name.strip_prefix(PREFIX)?, text)));
    ours.map(|(name, text)| (name.to_owned(), text.clone())).collect()
}

/// Whether a port of this protocol may be a worker's. Without a protocol it is TCP.
pub(super) fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

/// The number of a port, if it is one.
pub(super) fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok()
}

/// One thing that an object names.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// What it is called.
    pub(super) name: String,
    /// The workers that it is, one for each rank; or why it is none.
    pub(super) workers: Result<Vec<config::Worker>, String>,
    /// Whether they may be given work.
    pub(super) ready: bool,
    /// Which of two that are called the same is taken: the lowest.
    rank: (bool, String),
}

/// How what is named becomes workers.
pub(super) struct Rules<'a> {
    pub(super) port: Option<&'a Port>,
    scheme: Scheme,
    template: &'a Template,
}

/// What an object says of one worker.
pub(super) struct Spoken<'a> {
    /// The pod's name, if it has one.
    pub(super) pod: Option<&'a str>,
    /// Its address.
    pub(super) address: &'a str,
    /// What annotations say, without their prefix.
    pub(super) says: BTreeMap<String, String>,
    /// Whether it may be given work.
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

    /// The worker that an object speaks of; `find` finds its port by what is configured or annotated.
    pub(super) fn endpoint(
        &self,
        mut spoken: Spoken<'_>,
        find: impl FnOnce(Option<&Port>) -> Result<u16, String>,
    ) -> Endpoint {
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
        Endpoint {
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

/// What is wrong, without places: there is no file.
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

/// An address that a worker can have. Link-local ones are a machine's own, its cloud's metadata among them.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not an IP address"))?;
    // An IPv4 address that is written as one of IPv6 is connected to as what it is.
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

/// The workers of all objects. One that is named twice, as by two slices between which it moves, is taken once, and is ready
/// if either says so; one with addresses of both families goes by that of IPv4.
pub(super) fn gather<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Found {
    let mut by_name: BTreeMap<&str, (&Endpoint, bool)> = BTreeMap::new();
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
                    found.workers.insert(name, Named { spec, ready });
                }
            }
            Err(why) => found.refused.push(name, why),
        }
    }
    found
}

#[cfg(test)]
mod tests;
