//! The prefix index beside its published peers, on one workload, interleaved in one run.
//!
//! W workers, a million (block, worker) entries: 16 shared prompts of 32 blocks, conversations of 64 to 512 blocks that
//! grow by turns, a tenth of the turns on another worker. Every structure is fed the same events and asked the same
//! questions, one after the other in changing order; their answers are compared. Ends with what is promised of ours, and
//! with exit code 1 if any of that does not hold. `JSON=1` prints JSON lines.

mod clock;
mod contender;
mod heap;
mod promises;
mod report;
mod workload;

use std::process::ExitCode;

use clock::Clock;
use contender::{Contender, DynamoRadix, SmgChain, Tailroute};
use report::Report;
use workload::{Question, Workload};

const WORKERS: u32 = 64;
const ENTRIES: u64 = 1_000_000;
const TURNOVERS: u64 = 8;
const QUESTIONS: usize = 20_000;
const REMOVALS: u32 = 8;
/// Blocks that go one by one, with no stores between them.
const DRAINED: usize = 300_000;

fn main() -> ExitCode {
    let mut workload = Workload::new(WORKERS, ENTRIES, 20_261_121);
    let build = workload.build();
    let mut report = Report::default();
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    let makers: [fn() -> Box<dyn Contender>; 3] = [Tailroute::boxed, SmgChain::boxed, DynamoRadix::boxed];
    let mut heaps = Vec::new();
    for make in makers {
        let before = heap::live();
        let mut contender = make();
        let spent = contender.apply_all(&workload, &build);
        heaps.push(heap::live() - before);
        report.memory(contender.name(), report::FRESH, heap::live() - before, workload.entries());
        report.rate(contender.name(), [report::STORES, report::STORES_CPU], spent, workload::blocks(&build));
        contenders.push(contender);
    }
    ask_all(&workload, &mut contenders, "", &mut report);
    let churn = workload.churn(TURNOVERS);
    for (contender, heap_bytes) in contenders.iter_mut().zip(&mut heaps) {
        let before = heap::live();
        let spent = contender.apply_all(&workload, &churn);
        *heap_bytes = (*heap_bytes + heap::live()).saturating_sub(before);
        report.memory(contender.name(), report::WORN, *heap_bytes, workload.entries());
        report.rate(contender.name(), [report::CHURN, report::CHURN_CPU], spent, workload::blocks(&churn));
    }
    ask_all(&workload, &mut contenders, report::AFTER, &mut report);
    remove_workers(&mut contenders, &mut report);
    let drain = workload.drain(REMOVALS..WORKERS, DRAINED);
    for contender in &mut contenders {
        let spent = contender.apply_all(&workload, &drain);
        report.rate(contender.name(), [report::REMOVALS, report::REMOVALS_CPU], spent, workload::blocks(&drain));
    }
    report.promises = promises::of_ours(&report);
    report.print();
    ExitCode::from(u8::from(!report.promises.iter().all(|promise| promise.kept())))
}

fn remove_workers(contenders: &mut [Box<dyn Contender>], report: &mut Report) {
    for contender in contenders {
        let mut spent: Vec<u64> = (0..REMOVALS).map(|worker| contender.remove_worker(worker).wall).collect();
        spent.sort_unstable();
        report.figure(contender.name(), report::REMOVE_WORKER, spent[spent.len() / 2] as f64 / 1e6);
        report.figure(contender.name(), report::REMOVE_WORKER_WORST, spent[spent.len() - 1] as f64 / 1e6);
        if let Some(spent) = contender.reclaim() {
            report.figure(contender.name(), report::RECLAIM, spent.processor as f64 / 1e6 / f64::from(REMOVALS));
        }
    }
}

/// Asks every contender the same questions in changing order, each from a warm buffer as a router would, and times
/// each answer.
fn ask_all(workload: &Workload, contenders: &mut [Box<dyn Contender>], when: &str, report: &mut Report) {
    let clock = Clock::calibrated();
    for (case, questions) in workload.questions(QUESTIONS) {
        let mut times: Vec<Vec<u64>> = contenders.iter().map(|_| Vec::with_capacity(questions.len())).collect();
        let (mut answers, mut disagreements) = (vec![vec![0; WORKERS as usize]; contenders.len()], 0u64);
        for (round, question) in questions.iter().enumerate() {
            for turn in 0..contenders.len() {
                let at = (round + turn) % contenders.len();
                times[at].push(ask(&clock, &mut *contenders[at], question));
                contenders[at].answer(&mut answers[at]);
            }
            disagreements += u64::from(answers.iter().any(|answer| *answer != answers[0]));
        }
        for (contender, times) in contenders.iter().zip(&mut times) {
            times.sort_unstable();
            let at = |share: f64| clock.nanos(times[(times.len() as f64 * share) as usize]);
            report.lookup(contender.name(), &format!("{case}{when}"), at(0.5), at(0.99));
        }
        report.disagreements += disagreements;
        if disagreements > 0 {
            report.note(format!("{case}{when}: {disagreements} of {} answers differ", questions.len()));
        }
    }
}

fn ask(clock: &Clock, contender: &mut dyn Contender, question: &Question) -> u64 {
    contender.prepare(question);
    let start = clock.now();
    contender.ask();
    clock.now().saturating_sub(start).saturating_sub(clock.overhead)
}
