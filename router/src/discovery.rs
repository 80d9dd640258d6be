//! Workers that are found while the router serves: in Kubernetes, in the DNS, in a file.
//!
//! Each source has a task that keeps what it names ([`Found`]) on the [`Board`]; one task ([`members`]) makes the fleet
//! agree with the board. So a source knows nothing of the fleet, and what happens to a worker is the same whoever named
//! it:
//!
//! | what the source says | what becomes of the worker |
//! |---|---|
//! | names it | it joins, is probed, and is given work when it is well |
//! | calls it not ready | no new request from that moment; what it has goes on, and what is known of its cache stays |
//! | names it no longer, or calls it terminating | nothing new; it ends what it has, then it is forgotten |
//! | names it with other settings or another address | the same, and the new one joins when the old one is gone |
//! | cannot be reached, or says what cannot be understood | nothing: what was known last stays, and probes judge it |
//!
//! The last line is why a source's failure is no event of the fleet: an API server that is down, a name server that is slow
//! and half a file take no worker away. The log, `tailroute_discovery_up` and `GET /admin/v1/discovery` say that it failed,
//! and since when.
//!
//! Workers of the configuration, and those that somebody has added, are nobody else's: a source that names the same
//! name or address is refused it. Between sources the first one wins ([`Source::FINDERS`]).

pub mod board;
pub mod dns;

pub mod file;
pub mod kubernetes;
pub mod members;
mod pause;

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::app::App;
use crate::supervise::{Task, forever};
use fleet::source::Source;

pub use self::board::{Board, Found};

/// Starts what finds workers, if anything does.
pub fn spawn(app: &Arc<App>, tasks: &mut JoinSet<()>) {
    let settings = &app.config.discovery;
    if !settings.is_on() {
        return;
    }
    if let Some(settings) = settings.kubernetes.clone() {
        let of = Arc::clone(app);
        let keep = move || kubernetes::keep(Arc::clone(&of), settings.clone());
        tasks.spawn(forever(Arc::clone(app), Task::only("discovery_kubernetes"), keep));
    }
    if let Some(settings) = settings.dns.clone() {
        let of = Arc::clone(app);
        let keep = move || dns::keep(Arc::clone(&of), settings.clone());
        tasks.spawn(forever(Arc::clone(app), Task::only("discovery_dns"), keep));
    }
    if let Some(path) = settings.file.clone() {
        let of = Arc::clone(app);
        let keep = move || file::keep(Arc::clone(&of), path.clone());
        tasks.spawn(forever(Arc::clone(app), Task::only("discovery_file"), keep));
    }
    let of = Arc::clone(app);
    let keep = move || members::keep(Arc::clone(&of));
    tasks.spawn(forever(Arc::clone(app), Task::only("discovery_members"), keep));
}

/// What a source is asked for, in words.
fn asked(settings: &config::Discovery) -> Vec<(Source, String)> {
    let kubernetes = settings.kubernetes.as_ref().map(|kubernetes| {
        let of = match &kubernetes.watched {
            config::Watched::Services(names) => format!("endpoints of {}", names.join(", ")),
            config::Watched::Pods(selector) => format!("pods of {selector}"),
        };
        (Source::Kubernetes, of)
    });
    let dns = settings.dns.as_ref();
    let dns = dns.map(|dns| (Source::Dns, format!("SRV records of {}", dns.names.join(", "))));
    let file = settings.file.as_ref();
    let file = file.map(|path| (Source::File, path.display().to_string()));
    kubernetes.into_iter().chain(dns).chain(file).collect()
}
