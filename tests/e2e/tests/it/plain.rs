//! Workers without any support for the router: a server that implements the API and nothing else.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::route;
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::upstream::{Exchange, Upstream};

const TURNS: u64 = 5;

/// Returns the next request at either of two workers, with the worker's address.
async fn next([first, second]: &mut [Upstream; 2]) -> (SocketAddr, Exchange) {
    let (one, other) = (first.address, second.address);
    tokio::select! {
        exchange = first.next() => (one, exchange),
        exchange = second.next() => (other, exchange),
    }
}

/// Elsewhere, the router requires its runtime on the workers: <https://github.com/ai-dynamo/enhancements/issues/91>.
/// Here nothing is installed with the engines. They publish no events, no queue figures and no times, take no hints,
/// and do not report cached tokens.
#[tokio::test]
async fn a_conversation_stays_with_a_plain_worker_that_gets_the_clients_own_bytes() {
    let mut workers = [Upstream::start().await, Upstream::start().await];
    let router = route(&[workers[0].address, workers[1].address], |_| {}).await;
    let mut homes = Vec::new();
    // Other conversations come in between.
    let mut talks = [
        Conversation::new(&words(1, 300)),
        Conversation::new(&words(2, 300)),
    ];
    for turn in 0..TURNS {
        for (number, talk) in (0..).zip(&mut talks) {
            talk.user(&words(10 * turn + number, 30));
            let body = talk.body(json!({ "stream": false })).to_string();
            let asked = client::open(router.address, "POST", CHAT, &[], body.clone());
            let answered = async {
                let (home, exchange) = next(&mut workers).await;
                assert_eq!(String::from_utf8_lossy(&exchange.body), body);
                let said = json!({ "choices": [{
                    "index": 0,
                    "message": { "role": "assistant", "content": format!("answer {turn}") },
                    "finish_reason": "stop",
                }] });
                exchange.answer("200 OK", &said.to_string()).await;
                home
            };
            let (answer, home) = tokio::join!(asked, answered);
            let answer = answer.unwrap().whole().await;
            let said: Value = answer.json();
            talk.assistant(said["choices"][0]["message"]["content"].as_str().unwrap());
            homes.push((number, home));
        }
    }
    for number in 0..2 {
        let mut own = homes.iter().filter(|(of, _)| *of == number).map(|(_, home)| home);
        let first = own.next().unwrap();
        assert!(own.all(|home| home == first), "{homes:?}");
    }
}
