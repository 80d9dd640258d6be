//! The endpoint picker: a port where gateways ask for a request's worker and then proxy the request themselves.
//!
//! Envoy-based gateways call it by gRPC (`ext_proc`), as the Gateway API Inference Extension specifies: they send a
//! request's head and body, and get the addresses of workers, the best one first. Then they send the response's head
//! and body, so that it is observed like one that the router proxies. The stages between are those of [`proxy::path`].

mod answers;
mod bounded;
mod exchange;
mod head;
mod inbox;
mod pick;
pub mod serve;
mod served;
pub mod wire;
