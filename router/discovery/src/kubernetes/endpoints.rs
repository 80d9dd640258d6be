//! EndpointSlices: what a Service leads to.

use std::collections::BTreeMap;

use config::Port;
use serde::Deserialize;

use super::objects::{Endpoint, Meta, Object, Rules, Spoken, or_empty};

/// A slice of a Service's endpoints, of one family of addresses.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slice {
    metadata: Meta,
    #[serde(default, deserialize_with = "or_empty")]
    endpoints: Vec<Behind>,
    #[serde(default, deserialize_with = "or_empty")]
    ports: Vec<SlicePort>,
}

/// One endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Behind {
    #[serde(default, deserialize_with = "or_empty")]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Option<Conditions>,
    #[serde(default)]
    target_ref: Option<Target>,
}

/// How it is with an endpoint; what is not said is what an endpoint that is well would say.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

/// Whose endpoint it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Target {
    kind: String,
    name: String,
}

/// A port of all endpoints of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    port: Option<u16>,
    protocol: Option<String>,
}

impl Object for Slice {
    const RESOURCE: &'static str = "endpointslices.discovery.k8s.io";

    fn path(namespace: &str) -> String {
        format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
    }

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn endpoints(&self, rules: &Rules<'_>) -> Vec<Endpoint> {
        let staying = self.endpoints.iter().filter_map(|endpoint| {
            let conditions = endpoint.conditions.unwrap_or_default();
            // It is not coming back: it is named no longer.
            if conditions.terminating == Some(true) {
                return None;
            }
            let pod = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod");
            let spoken = Spoken {
                pod: pod.map(|target| target.name.as_str()),
                // Of several, which no controller writes, all are the same endpoint's.
                address: endpoint.addresses.first()?,
                says: BTreeMap::new(),
                // A Service that publishes what is not ready calls everything ready: `serving` is the pod's own word.
                ready: conditions.ready != Some(false) && conditions.serving != Some(false),
            };
            Some(rules.endpoint(spoken, |port| self.port(port)))
        });
        staying.collect()
    }
}

impl Slice {
    fn port(&self, wanted: Option<&Port>) -> Result<u16, String> {
        let tcp = |port: &&SlicePort| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
        let mut ports = self.ports.iter().filter(tcp);
        let none = || "its Service has no TCP port".to_owned();
        match wanted {
            Some(Port::Number(number)) => Ok(*number),
            Some(Port::Name(name)) => ports
                .find(|port| port.name.as_deref() == Some(name))
                .and_then(|port| port.port)
                .ok_or_else(|| format!("its Service has no port that is called {name}")),
            None => {
                let first = ports.next().and_then(|port| port.port).ok_or_else(none)?;
                match ports.next() {
                    None => Ok(first),
                    Some(_) => Err("its Service has several ports: set discovery.kubernetes.port".to_owned()),
                }
            }
        }
    }
}
