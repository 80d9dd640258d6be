use super::*;

#[test]
fn a_request_that_never_arrived_leaves_no_trace_but_keeps_what_was_there() {
    let mut residency = residency(4096);
    let long = prompt("a", 6);
    let short = {
        let hold = residency.sent(W0, &long, |end| end).unwrap();
        residency.retract(hold);
        assert_eq!(depth(&residency, W0, &long), 0);
        prompt("b", 2)
    };
    serve(&mut residency, W0, &short, 0);
    let hold = residency.sent(W0, &short, |end| end).unwrap();
    residency.retract(hold);
    assert_eq!(depth(&residency, W0, &short), 2);
}

#[test]
fn a_request_that_never_arrived_takes_nothing_that_another_computed() {
    for first_answered in [false, true] {
        let mut residency = residency(4096);
        let chain = prompt("a", 4);
        let mut hold = || residency.sent(W0, &chain, |end| end).unwrap();
        let (first, second) = (hold(), hold());
        let (answered, lost) = if first_answered {
            (first, second)
        } else {
            (second, first)
        };
        residency.settle(answered, None, |end| end, Tokens::ZERO, Tokens(1024));
        residency.retract(lost);
        assert_eq!(depth(&residency, W0, &chain), 4, "{first_answered}");
    }
}

#[test]
fn of_two_requests_that_never_arrived_nothing_is_left_whoever_came_first() {
    for turned in [false, true] {
        let mut residency = residency(4096);
        let (chain, longer) = (prompt("a", 4), prompt("a", 6));
        let mut holds = [&chain, &longer].map(|chain| residency.sent(W0, chain, |end| end).unwrap());
        if turned {
            holds.reverse();
        }
        for hold in holds {
            residency.retract(hold);
        }
        assert_eq!(residency.tokens_on(W0), Tokens::ZERO);
        assert_eq!(
            (depth(&residency, W0, &longer), residency.entries(W0).len()),
            (0, 0)
        );
    }
}
