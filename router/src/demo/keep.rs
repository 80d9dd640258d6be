//! `tailroute demo --keep`: a fleet that stays, on the usual ports where they are free, with light traffic.

use std::convert::Infallible;
use std::future::pending;
use std::net::TcpListener;
use std::time::Duration;

use client::drive::client::ChatClient;
use client::drive::run::replay;

use super::{Contender, DemoStage, settings, workload};

/// Ports of the router, as `tailroute serve` has them.
const PORTS: [u16; 2] = [8080, 9090];
/// Pace of the traffic relative to the workload's own: a fifth of what the engines serve in the comparison.
const PACE: f64 = 1.0;

/// Starts a stage on the usual ports of the loopback, on any free port in place of one that is taken. Fails as
/// [`DemoStage::start`] does.
pub async fn start(contender: Contender) -> anyhow::Result<DemoStage> {
    DemoStage::start(contender, PORTS.map(free_or_any)).await
}

/// Returns `port` if it can be bound, else 0: any free port.
fn free_or_any(port: u16) -> u16 {
    TcpListener::bind(("127.0.0.1", port)).map_or(0, |_| port)
}

/// Sends conversations to a stage, one workload after another, until it is dropped. Fails if there is no client for the
/// stage's address.
pub async fn traffic(stage: &DemoStage, first_seed: u64) -> anyhow::Result<Infallible> {
    let mut seed = first_seed;
    loop {
        let plan = workload::plan(seed, PACE);
        let client = ChatClient::new(Duration::from_secs(60))?;
        replay(client, settings(stage, seed)?, &plan, |_| {}, pending()).await;
        seed = seed.wrapping_add(1);
    }
}

/// Describes how to reach a stage, and how to end it. `program` is the name that tailroute was called by.
pub fn describe(stage: &DemoStage, program: &str) -> String {
    let (data, admin) = (stage.router.address, stage.router.admin_address);
    format!(
        "\nA fleet under `tail` stays up, with light traffic.\n  \
         console   {}\n  \
         terminal  {program} top --admin http://{admin}\n  \
         metrics   http://{admin}/metrics\n  \
         requests  http://{data}/v1/chat/completions (model `sim`)\n\
         Press Ctrl-C to end it.",
        admin::console::url(admin)
    )
}

#[cfg(test)]
mod tests {
    use proxy::decisions::Filter;

    use super::super::CONTENDERS;
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_replaced_by_any() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(free_or_any(port), 0);
    }

    #[tokio::test]
    async fn a_kept_fleet_has_traffic_and_says_where_it_is() {
        let stage = DemoStage::start(CONTENDERS[3], [0, 0]).await.unwrap();
        let served = async {
            let decisions = &stage.router.parts().proxy.decisions;
            while decisions.page(&Filter::default(), None, 1).0.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            ended = traffic(&stage, 1) => panic!("{ended:?}"),
            served = tokio::time::timeout(Duration::from_secs(30), served) => served.unwrap(),
        }
        let said = describe(&stage, "./tailroute");
        let admin = stage.router.admin_address;
        assert!(said.contains(&format!("http://{admin}/console/")), "{said}");
        assert!(
            said.contains(&format!("./tailroute top --admin http://{admin}\n")),
            "{said}"
        );
        stage.stop().await;
    }
}
