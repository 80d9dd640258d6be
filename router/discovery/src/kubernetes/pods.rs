//! Pods, by their labels.

use std::borrow::Cow;

use config::Port;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ContainerPort, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::objects::{Object, PREFIX, Rules, SliceEndpoint, Spoken, annotated, is_tcp, number};

/// The parts of a pod that describe a worker. The API's own type decodes every volume, probe and affinity as well.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    metadata: ObjectMeta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodSpec {
    containers: Option<Vec<Container>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Container {
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

impl kube::Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        Self::RESOURCE.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Object for Pod {
    const RESOURCE: &'static str = "pods";

    fn endpoints(&self, rules: &Rules<'_>) -> Vec<SliceEndpoint> {
        let status = self.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let address = status.and_then(|status| status.pod_ip.as_deref());
        let address = address.filter(|address| !address.is_empty());
        // Pods without an address are not workers yet; terminating and completed pods are no longer workers.
        let (Some(address), false, None) = (address, ended, &self.metadata.deletion_timestamp) else {
            return Vec::new();
        };
        let is_ready = |condition: &PodCondition| condition.type_ == "Ready" && condition.status == "True";
        let mut conditions = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten();
        let spoken = Spoken {
            pod: self.metadata.name.as_deref(),
            address,
            says: annotated(&self.metadata),
            ready: conditions.any(is_ready),
        };
        vec![rules.endpoint(spoken, |wanted| port(self, wanted))]
    }
}

fn port(pod: &Pod, wanted: Option<&Port>) -> Result<u16, String> {
    let containers = pod.spec.iter().flat_map(|spec| spec.containers.iter().flatten());
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let mut ports = ports.filter(|port| is_tcp(port.protocol.as_deref()));
    match wanted {
        Some(Port::Number(number)) => Ok(*number),
        Some(Port::Name(name)) => ports
            .find(|port| port.name.as_deref() == Some(name))
            .and_then(|port| number(port.container_port))
            .ok_or_else(|| format!("none of its containers has a port named {name}")),
        None => {
            let first = ports.next().and_then(|port| number(port.container_port)).ok_or_else(|| {
                format!("its containers name no port: set discovery.kubernetes.port, or {PREFIX}port on the pod")
            })?;
            match ports.next() {
                None => Ok(first),
                Some(_) => Err(format!(
                    "its containers name several ports: set discovery.kubernetes.port, or {PREFIX}port on the pod"
                )),
            }
        }
    }
}
