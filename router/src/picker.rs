//! The endpoint picker: a port where gateways ask which worker a request should go to, and carry it there themselves.
//!
//! Envoy-based gateways ask by gRPC (`ext_proc`), as the Gateway API Inference Extension says: the head and the body of a
//! request come in, the addresses of workers go back, the best one first. Then the answer's head and body come by, so that
//! what happened is known as it is of a request that the router carries itself. Everything between is [`crate::path`]'s: who may
//! come in, what the body says, the gate, the choice, the account of it. Nothing is chosen here.
//!
//! | file | what it does |
//! |---|---|
//! | `wire` | Envoy's messages |
//! | `serve` | the port: connections, streams, their end |
//! | `bounded` | what messages may make the router hold |
//! | `talk` | one request, from its head to the end of its answer |
//! | `inbox` | what comes in of it, as a body where it is one |
//! | `head` | the request's head, and whom it may go to |
//! | `pick` | the worker, by the stages of the request's way |
//! | `told` | what goes out |
//! | `served` | the answer as it passes, and who really gave it |

mod answers;
mod bounded;
mod exchange;
mod head;
mod inbox;
mod pick;
pub mod serve;
mod served;
pub mod wire;
