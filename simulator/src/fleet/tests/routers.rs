//! Several routers in front of the same workers.

use super::*;

fn routed(count: usize, sharing: Option<(f64, f64)>, workers: usize, load: f64) -> FleetConfig {
    let sharing = sharing.map(|(delay, loss)| Sharing {
        delay: Millis(delay),
        loss,
    });
    FleetConfig {
        routers: Routers { count, sharing },
        learn_costs: false,
        pace: Pace::Load(load),
        ..plain(workers, 20_000)
    }
}

#[test]
fn routers_that_hear_of_each_other_at_once_choose_as_a_single_one_does() {
    let turns = generated(200);
    let cases = [
        (PolicyName::Tail, CacheRule::TLru),
        (PolicyName::LeastTtft, CacheRule::Lru),
        (PolicyName::RoundRobin, CacheRule::Lru),
    ];
    for (policy, cache) in cases {
        let play = |count| {
            let mut config = FleetConfig {
                cache,
                ..routed(count, Some((0.0, 0.0)), 4, 0.7)
            };
            config.settings.policy = policy;
            let mut records = play(&turns, &config).per_turn.unwrap();
            records.sort_by_key(|record| record.turn);
            records
        };
        assert_eq!(play(1), play(3), "{policy} {cache}");
    }
}

#[test]
fn routers_that_tell_each_other_nothing_send_to_workers_that_are_busy() {
    let turns = generated(800);
    let mean = |count, sharing| {
        let learn_costs = true;
        let config = routed(count, sharing, 6, 0.7);
        play(
            &turns,
            &FleetConfig {
                learn_costs,
                ..config
            },
        )
        .mean_ms
    };
    let one = mean(1, None);
    let (telling, alone) = (mean(4, Some((5.0, 0.0))), mean(4, None));
    assert!(telling < one * 1.2, "{telling} {one}");
    assert!(alone > one * 1.5, "{alone} {one}");
}

#[test]
fn what_routers_do_not_hear_of_is_mended_and_every_turn_is_served_whatever_happens() {
    let turns = generated(400);
    for (delay, loss) in [(0.0, 0.0), (50.0, 0.2), (500.0, 1.0)] {
        for view in [
            View::Exact,
            View::Mirror,
            View::Events {
                delay: Millis(20.0),
                loss: 0.1,
            },
        ] {
            let faults = [(0.2, FaultKind::Die), (0.5, FaultKind::Return)];
            let fault = |(at, kind)| Fault {
                worker: WorkerId(1),
                at,
                kind,
            };
            let config = FleetConfig {
                faults: faults.map(fault).to_vec(),
                view,
                order: Order::Edf,
                cache: CacheRule::Tail,
                ..routed(3, Some((delay, loss)), 3, 0.9)
            };
            let report = play(&turns, &config);
            assert_eq!(
                (report.turns, report.unserved),
                (400, 0),
                "{delay} {loss} {view:?}"
            );
            assert_eq!(report, play(&turns, &config), "one seed, one result");
        }
    }
}
