//! Pods: what labels select.

use config::Port;
use serde::Deserialize;

use super::objects::{Endpoint, Meta, Object, PREFIX, Rules, Spoken, or_empty};

/// A pod, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Pod {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(default, deserialize_with = "or_empty")]
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Deserialize)]
struct Container {
    #[serde(default, deserialize_with = "or_empty")]
    ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
    protocol: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(deserialize_with = "or_empty")]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Object for Pod {
    const RESOURCE: &'static str = "pods";

    fn path(namespace: &str) -> String {
        format!("/api/v1/namespaces/{namespace}/pods")
    }

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn endpoints(&self, rules: &Rules<'_>) -> Vec<Endpoint> {
        let ended = matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let address = self
            .status
            .pod_ip
            .as_deref()
            .filter(|address| !address.is_empty());
        // One that has no address yet is no worker yet; one that ends or has ended is named no longer.
        let (Some(address), false, None) = (address, ended, &self.metadata.deletion_timestamp) else {
            return Vec::new();
        };
        let is_ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let spoken = Spoken {
            pod: Some(&self.metadata.name),
            address,
            says: self.metadata.says(),
            ready: self.status.conditions.iter().any(is_ready),
        };
        vec![rules.endpoint(spoken, |port| self.port(port))]
    }
}

impl Pod {
    fn port(&self, wanted: Option<&Port>) -> Result<u16, String> {
        let ports = self.spec.containers.iter().flat_map(|container| &container.ports);
        let mut ports =
            ports.filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"));
        match wanted {
            Some(Port::Number(number)) => Ok(*number),
            Some(Port::Name(name)) => ports
                .find(|port| port.name.as_deref() == Some(name))
                .map(|port| port.container_port)
                .ok_or_else(|| format!("none of its containers has a port that is called {name}")),
            None => {
                let first = ports.next().ok_or_else(|| {
                    format!("its containers name no port: set discovery.kubernetes.port, or {PREFIX}port on the pod")
                })?;
                match ports.next() {
                    None => Ok(first.container_port),
                    Some(_) => Err(format!(
                        "its containers name several ports: set discovery.kubernetes.port, or {PREFIX}port on the pod"
                    )),
                }
            }
        }
    }
}
