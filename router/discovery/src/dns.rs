//! Workers named by SRV records. Only the records of a name's lowest priority are used, and their weights are ignored,
//! because the router knows the workers' load. If a server fails for any name, the last state stays in force.

mod lookup;
mod system;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use config::{Scheme, Template};

use self::lookup::{ResolvedAddresses, Resolver};
use crate::kubernetes::{address, in_words};
use crate::pause::{self, Backoff};
use crate::source::DiscoverySource;
use crate::state::{DiscoveredWorker, DiscoveryState, Found, MAX_NAME};

/// Longest time to live that is honoured, which bounds the delay that a wrong one causes.
const MAX_TTL: Duration = Duration::from_secs(300);

pub(crate) async fn run(settings: &config::Dns, discovery: &config::Discovery, state: &DiscoveryState) {
    let mut pause = Backoff::new(pause::seed());
    loop {
        // Read each time, because the system's servers may change.
        let own = settings.clone();
        let resolver = tokio::task::spawn_blocking(move || Resolver::new(&own)).await;
        let asked = match resolver.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(resolver) => ask(&resolver, settings, discovery).await,
            Err(why) => Err(why),
        };
        let wait = match asked {
            Ok((found, ttl)) => {
                pause.reset();
                state.found(DiscoverySource::Dns, found);
                settings.interval.max(ttl.min(MAX_TTL))
            }
            Err(why) => {
                state.failed(DiscoverySource::Dns, &why);
                pause.next().max(settings.interval)
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn ask(
    resolver: &Resolver,
    settings: &config::Dns,
    discovery: &config::Discovery,
) -> Result<(Found, Duration), String> {
    let mut targets: BTreeMap<(String, u16), ResolvedAddresses> = BTreeMap::new();
    let mut found = Found::default();
    let mut ttls = Vec::new();
    for name in &settings.names {
        let records = resolver.srv(name).await?;
        // A name without records is polled at the plain interval.
        ttls.push(records.ttl.unwrap_or_default());
        let lowest = records.srv.iter().map(|record| record.priority).min();
        let taken = records
            .srv
            .iter()
            .filter(|record| Some(record.priority) == lowest);
        for record in taken {
            let key = (record.host.clone(), record.port);
            // The root as target means that there is none (RFC 2782).
            if record.host.is_empty() || record.port == 0 || targets.contains_key(&key) {
                continue;
            }
            if targets.len() >= discovery.max_workers {
                found
                    .refused
                    .push(&record.host, "more than discovery.max_workers");
                continue;
            }
            let addresses = match records.beside.get(&record.host) {
                Some(addresses) => addresses.clone(),
                None => resolver.addresses(&record.host).await?,
            };
            ttls.push(addresses.ttl.unwrap_or_default());
            targets.insert(key, addresses);
        }
    }
    for ((host, port), addresses) in &targets {
        named(
            host,
            *port,
            &addresses.ips,
            settings.scheme,
            &discovery.template,
            &mut found,
        );
    }
    Ok((found, ttls.into_iter().min().unwrap_or_default()))
}

/// Adds the workers of one target: one named by host with TLS, otherwise one per address.
fn named(
    host: &str,
    port: u16,
    addresses: &[IpAddr],
    scheme: Scheme,
    template: &Template,
    found: &mut Found,
) {
    let by_host = format!("{host}:{port}");
    let socket = |at: &IpAddr| SocketAddr::from((*at, port)).to_string();
    let short = by_host.len() <= MAX_NAME;
    let each: Vec<(String, String)> = match (scheme, addresses) {
        (_, []) => {
            found.refused.push(&by_host, "the name has no address");
            return;
        }
        (Scheme::Https, [first, ..]) => {
            let name = if short { by_host.clone() } else { socket(first) };
            vec![(name, format!("https://{by_host}"))]
        }
        (Scheme::Http, [only]) if short => vec![(by_host.clone(), format!("http://{}", socket(only)))],
        (Scheme::Http, all) => all
            .iter()
            .map(|at| (socket(at), format!("http://{}", socket(at))))
            .collect(),
    };
    if let Some(why) = addresses.iter().find_map(|at| address(&at.to_string()).err()) {
        found.refused.push(&by_host, why);
        return;
    }
    for (name, url) in each {
        match template.workers(&name, &url, &BTreeMap::new(), "") {
            Ok(workers) => found.workers.extend(workers.into_iter().map(|spec| {
                let ready = true;
                (spec.name.clone(), DiscoveredWorker { spec, ready })
            })),
            Err(problems) => found.refused.push(&name, in_words(&problems)),
        }
    }
}
