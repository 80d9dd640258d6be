//! EndpointSlices: the endpoints of a Service, for one address family.

use std::collections::BTreeMap;

use config::Port;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::objects::{Object, Rules, SliceEndpoint, Spoken, is_tcp, number};

impl Object for EndpointSlice {
    const RESOURCE: &'static str = "endpointslices.discovery.k8s.io";

    fn endpoints(&self, rules: &Rules<'_>) -> Vec<SliceEndpoint> {
        let staying = self.endpoints.iter().flatten().filter_map(|endpoint| {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            // Terminating endpoints do not return.
            if conditions.terminating == Some(true) {
                return None;
            }
            let target = endpoint.target_ref.as_ref();
            let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
            let spoken = Spoken {
                pod: pod.and_then(|target| target.name.as_deref()),
                // No controller writes several; all would belong to the same endpoint.
                address: endpoint.addresses.first()?,
                says: BTreeMap::new(),
                // With `publishNotReadyAddresses` every endpoint is `ready`; `serving` is the pod's own readiness.
                ready: conditions.ready != Some(false) && conditions.serving != Some(false),
            };
            Some(rules.endpoint(spoken, |wanted| port(self, wanted)))
        });
        staying.collect()
    }
}

fn port(slice: &EndpointSlice, wanted: Option<&Port>) -> Result<u16, String> {
    let ports = slice.ports.iter().flatten();
    let mut ports = ports.filter(|port| is_tcp(port.protocol.as_deref()));
    match wanted {
        Some(Port::Number(number)) => Ok(*number),
        Some(Port::Name(name)) => ports
            .find(|port| port.name.as_deref() == Some(name))
            .and_then(|port| number(port.port?))
            .ok_or_else(|| format!("its Service has no port named {name}")),
        None => {
            let first = ports.next().and_then(|port| number(port.port?));
            let first = first.ok_or_else(|| "its Service has no TCP port".to_owned())?;
            match ports.next() {
                None => Ok(first),
                Some(_) => Err("its Service has several ports: set discovery.kubernetes.port".to_owned()),
            }
        }
    }
}
