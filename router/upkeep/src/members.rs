//! Applies discovery results to the fleet.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use discovery::{DiscoveredWorker, DiscoverySource, RefusedEntries};
use tracing::info;

use super::Tasks;
use fleet::overrides::AdminState;
use fleet::{JoinError, Worker};
use state::State;

/// Interval between attempts while a worker waits to join.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn spawn(tasks: &mut Tasks) {
    let state = Arc::clone(&tasks.state);
    let settings = &state.config.discovery;
    if !settings.is_on() {
        return;
    }
    for source in discovery::tasks(settings, &state.operations.discovery) {
        tasks.spawn(source.name(), move || source.clone().run());
    }
    tasks.spawn_with(&state, "discovery_members", keep);
}

/// Keeps the fleet in agreement with the sources, forever.
async fn keep(state: Arc<State>) {
    loop {
        // Reports that arrive meanwhile are handled in the next round.
        let all_answered = state.operations.discovery.all_answered();
        let waits = agree(&state);
        if all_answered {
            state.operations.discovery.agreed();
        }
        tokio::select! {
            () = state.operations.discovery.changed() => {}
            () = tokio::time::sleep(LOOK), if waits => {}
        }
    }
}

/// Number of slots per discoverable worker: within the seconds that a removed worker keeps its slot, all may be
/// replaced twice.
const SLOTS_PER_WORKER: usize = 3;

struct DesiredWorkers<'a> {
    workers: BTreeMap<&'a str, (DiscoverySource, &'a DiscoveredWorker)>,
    refused: BTreeMap<DiscoverySource, RefusedEntries>,
}

/// Applies the sources to the fleet. Returns whether a worker waits to join until another one has left.
fn agree(state: &State) -> bool {
    let all = state.operations.discovery.all();
    let present = state.routing.fleet.present();
    let mut wanted = DesiredWorkers {
        workers: BTreeMap::new(),
        refused: all
            .iter()
            .map(|(source, _)| (*source, RefusedEntries::default()))
            .collect(),
    };
    for (source, found) in &all {
        for (name, named) in &found.workers {
            if let Some((first, _)) = wanted.workers.get(name.as_str()) {
                let why = format!("{} already has a worker of this name", first.as_str());
                wanted.refuse(*source, name, why);
            } else {
                wanted.workers.insert(name, (*source, named));
            }
        }
    }
    let heard: HashSet<fleet::source::WorkerSource> = all.iter().map(|(source, _)| of(*source)).collect();
    for worker in present.iter().filter(|worker| heard.contains(&worker.source)) {
        adjust(state, worker, wanted.workers.get(worker.name()).copied());
    }
    let waits = join(state, &present, &mut wanted);
    for (source, refused) in wanted.refused {
        state.operations.discovery.not_taken(source, refused);
    }
    waits
}

impl DesiredWorkers<'_> {
    fn refuse(&mut self, source: DiscoverySource, name: &str, why: String) {
        self.refused.entry(source).or_default().push(name, why);
    }
}

fn adjust(state: &State, worker: &Worker, wanted: Option<(DiscoverySource, &DiscoveredWorker)>) {
    match wanted {
        Some((source, named)) if worker.source == of(source) && named.spec == worker.spec => {
            if worker.set_offered(named.ready) != named.ready {
                info!(
                    worker = worker.name(),
                    ready = named.ready,
                    source = source.as_str(),
                    "discovery changed the worker's readiness"
                );
                state.operations.worker_changed(worker);
            }
        }
        // The source removed the worker or changed its settings.
        _ => {
            state.leave(worker);
        }
    }
}

fn join(state: &State, present: &[Arc<Worker>], wanted: &mut DesiredWorkers<'_>) -> bool {
    let by_name: HashMap<&str, &Arc<Worker>> = present.iter().map(|worker| (worker.name(), worker)).collect();
    let stays = |worker: &&Arc<Worker>| !worker.admin_state().is_final();
    let address = |spec: &config::Worker| (spec.url.to_string(), spec.rank);
    let mut addresses: HashMap<_, &str> = present
        .iter()
        .filter(stays)
        .map(|worker| (address(&worker.spec), worker.name()))
        .collect();
    let mut found = present
        .iter()
        .filter(stays)
        .filter(|worker| worker.source.finds())
        .count();
    let most = state.config.discovery.max_workers;
    let slots = state.config.workers.len() + SLOTS_PER_WORKER * most;
    let (mut waits, mut refused) = (false, Vec::new());
    for (name, (source, named)) in &wanted.workers {
        match by_name.get(name) {
            Some(worker) if worker.admin_state() == AdminState::Leaving => {
                waits = true;
                continue;
            }
            Some(worker) if worker.source == of(*source) => continue,
            Some(worker) => {
                let why = format!("the {} has a worker of this name", worker.source.as_str());
                refused.push((*source, *name, why));
                continue;
            }
            None => {}
        }
        if let Some(other) = addresses.get(&address(&named.spec)) {
            refused.push((*source, *name, format!("it has the address of {other}")));
        } else if found >= most {
            let why = format!("the limit of {most} workers is reached (discovery.max_workers)");
            refused.push((*source, *name, why));
        } else if !state.routing.fleet.has_slot(state.routing.clock.now(), slots) {
            waits = true;
        } else {
            match state.join_named(named.spec.clone(), of(*source), named.ready) {
                Ok(_) => {
                    found += 1;
                    addresses.insert(address(&named.spec), name);
                }
                // The name was taken meanwhile, or the slots of removed workers are not free yet.
                Err(JoinError::NameTaken | JoinError::Leaving | JoinError::Full) => waits = true,
            }
        }
    }
    for (source, name, why) in refused {
        wanted.refuse(source, name, why);
    }
    waits
}

fn of(source: DiscoverySource) -> fleet::source::WorkerSource {
    match source {
        DiscoverySource::Kubernetes => fleet::source::WorkerSource::Kubernetes,
        DiscoverySource::Dns => fleet::source::WorkerSource::Dns,
        DiscoverySource::File => fleet::source::WorkerSource::File,
    }
}
