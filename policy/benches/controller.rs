//! What a turn costs the controller of ξ, decisions included: `cargo bench -p tailroute-policy --bench controller`.
//!
//! Nine ghosts and a window, off every request's path. Chats, whose ghosts hold hundreds of conversations; and the same
//! from a worker whose learned cost will not rest, so that the window is priced anew as often as it may be.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::simulate::generate::{Generator, Parameters, Workload};
use policy::slo::{Controller, ServedTurn};
use policy::units::{Millis, Tokens};

const TURNS: usize = 4000;

fn turns(restless: bool) -> Vec<ServedTurn> {
    let workload = Workload {
        name: "wildchat",
        seed: 1,
        parameters: Parameters::WILDCHAT,
    };
    let Ok(generator) = Generator::new(&workload) else {
        return Vec::new();
    };
    let served = |(at, turn): (usize, policy::trace::Turn)| ServedTurn {
        worker: WorkerId(0),
        conversation: turn.conversation.0,
        prompt: turn.input_tokens(),
        history: turn.history_tokens,
        length: turn.total_tokens(),
        cost: PrefillCost::linear(if restless && at / 20 % 2 == 1 { 0.11 } else { 0.1 }, 20.0),
        wait: Millis::ZERO,
        objective: Millis(150.0),
        next_prompt: Tokens(200),
        utilisation: 0.02,
    };
    generator.take(TURNS).enumerate().map(served).collect()
}

fn controller(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("controller");
    group.throughput(Throughput::Elements(TURNS as u64));
    for (name, restless) in [("steady", false), ("restless", true)] {
        let turns = turns(restless);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut controller = Controller::new(&[Tokens(200_000)], 1.0);
                turns.iter().for_each(|turn| controller.served(turn));
                controller.state()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).without_plots()
        .warm_up_time(std::time::Duration::from_millis(200)).measurement_time(std::time::Duration::from_secs(2));
    targets = controller
}
criterion_main!(benches);
