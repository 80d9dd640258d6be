//! SRV records, from a small name server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hickory_net::proto::op::{Message, OpCode, ResponseCode};
use hickory_net::proto::rr::rdata::{A, SRV};
use hickory_net::proto::rr::{Name, RData, Record, RecordType};
use parking_lot::Mutex;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::{until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinHandle;

use super::{Finding, engine};

const NAME: &str = "_http._tcp.vllm.inference.svc";

/// The answers of the server.
#[derive(Clone)]
enum Says {
    /// These records: priority, host, port. Hosts are at 127.0.0.1.
    Records(Vec<(u16, &'static str, u16)>),
    Failure,
    /// No answer.
    Nothing,
}

struct Server {
    address: SocketAddr,
    says: Arc<Mutex<Says>>,
    /// Whether UDP answers are truncated, and the number of queries over TCP.
    truncates: Arc<Mutex<(bool, usize)>>,
    serving: [JoinHandle<()>; 2],
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

impl Server {
    async fn start(says: Says) -> Self {
        // UDP and TCP need the same port.
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let (says, truncates) = (Arc::new(Mutex::new(says)), Arc::new(Mutex::new((false, 0))));
        let (of_udp, cut) = (Arc::clone(&says), Arc::clone(&truncates));
        let datagrams = tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, from)) = udp.recv_from(&mut question).await {
                let truncates = cut.lock().0;
                let answer = answer(&question[..length], &of_udp.lock().clone(), truncates);
                if let Some(answer) = answer {
                    let _ = udp.send_to(&answer, from).await;
                }
            }
        });
        let (of_tcp, count) = (Arc::clone(&says), Arc::clone(&truncates));
        let streams = tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                count.lock().1 += 1;
                // The router may have given up.
                let _ = respond(&mut stream, &of_tcp).await;
            }
        });
        Self {
            address,
            says,
            truncates,
            serving: [datagrams, streams],
        }
    }

    fn say(&self, says: Says) {
        *self.says.lock() = says;
    }

    fn config(&self) -> String {
        format!(
            "[discovery.dns]\nsrv = [{NAME:?}]\nserver = \"{}\"\ninterval_s = 0.05\ntimeout_s = 0.2\n",
            self.address
        )
    }
}

/// Answers a query over TCP.
async fn respond(stream: &mut TcpStream, says: &Mutex<Says>) -> std::io::Result<()> {
    let length = stream.read_u16().await?;
    let mut question = vec![0; length.into()];
    stream.read_exact(&mut question).await?;
    let says = says.lock().clone();
    if let Some(answer) = answer(&question, &says, false) {
        stream.write_u16(answer.len() as u16).await?;
        stream.write_all(&answer).await?;
    }
    Ok(())
}

fn answer(question: &[u8], says: &Says, truncates: bool) -> Option<Vec<u8>> {
    let question = Message::from_vec(question).unwrap();
    let query = question.queries[0].clone();
    let (name, kind) = (query.name().clone(), query.query_type());
    let is = |text: &str| name == Name::from_ascii(format!("{text}.")).unwrap();
    let mut answer = Message::response(question.id, OpCode::Query);
    answer.add_query(query);
    match says {
        Says::Nothing => return None,
        Says::Failure => answer.metadata.response_code = ResponseCode::ServFail,
        Says::Records(records) if kind == RecordType::SRV && is(NAME) => {
            for (priority, host, port) in records {
                let target = Name::from_ascii(format!("{host}.")).unwrap();
                let srv = SRV::new(*priority, 0, *port, target);
                answer.add_answer(Record::from_rdata(name.clone(), 0, RData::SRV(srv)));
            }
        }
        Says::Records(records) if kind == RecordType::A && records.iter().any(|(_, host, _)| is(host)) => {
            let address = RData::A(A(Ipv4Addr::LOCALHOST));
            answer.add_answer(Record::from_rdata(name.clone(), 0, address));
        }
        Says::Records(_) => {}
    }
    if answer.answers.is_empty() && matches!(says, Says::Records(_)) {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    if truncates {
        answer.answers.clear();
        answer.metadata.truncation = true;
    }
    Some(answer.to_vec().unwrap())
}

#[tokio::test]
async fn srv_records_of_the_lowest_priority_are_workers() {
    let engines = [
        engine(quick()).await,
        engine(quick()).await,
        engine(quick()).await,
    ];
    let [a, b, c] = [0, 1, 2].map(|at: usize| engines[at].addr().port());
    let records = vec![
        (10, "vllm-0.example", a),
        (10, "vllm-1.example", b),
        (20, "spare.example", c),
    ];
    let server = Server::start(Says::Records(records)).await;
    let finding = Finding::start(&server.config()).await;
    let (name_a, name_b) = (format!("vllm-0.example:{a}"), format!("vllm-1.example:{b}"));
    finding.until_ready(&[&name_a, &name_b]).await;
    assert_eq!(finding.names().len(), 2, "the spare one is not taken");
    let url = finding.find(&name_a).unwrap().spec.url.to_string();
    assert_eq!(url, format!("http://127.0.0.1:{a}/"));
    server.say(Says::Records(vec![(10, "vllm-1.example", b)]));
    finding.until_gone(&name_a).await;
    server.say(Says::Records(Vec::new()));
    finding.until_gone(&name_b).await;
    // That there is no record is an answer.
    finding.until_heard_again().await;
}

#[tokio::test]
async fn a_failing_or_silent_name_server_removes_no_worker() {
    let engine = engine(quick()).await;
    let port = engine.addr().port();
    let records = Says::Records(vec![(0, "vllm-0.example", port)]);
    let server = Server::start(records.clone()).await;
    let finding = Finding::start(&server.config()).await;
    let name = format!("vllm-0.example:{port}");
    finding.until_ready(&[&name]).await;
    for (says, expected) in [
        (Says::Failure, "response code ServFail"),
        (Says::Nothing, "no answer within 0.2 s"),
    ] {
        server.say(says);
        // A machine that stands still makes an answer late.
        let so = |what: String| what.contains(NAME) && what.contains(expected);
        within(async { while !so(finding.until_failing().await) {} }).await;
        assert_eq!(finding.names(), [name.as_str()]);
        assert_eq!(finding.chat().await.status, 200);
        server.say(records.clone());
        finding.until_heard_again().await;
    }
    assert_eq!(
        finding.admin(&format!("/admin/v1/workers/{name}")).await["source"],
        "dns"
    );
}

#[tokio::test]
async fn a_truncated_answer_is_requested_over_tcp() {
    let engine = engine(quick()).await;
    let port = engine.addr().port();
    let server = Server::start(Says::Records(vec![(0, "vllm-0.example", port)])).await;
    server.truncates.lock().0 = true;
    let finding = Finding::start(&server.config()).await;
    finding.until_ready(&[&format!("vllm-0.example:{port}")]).await;
    until("it to be asked over TCP", || server.truncates.lock().1 > 0).await;
}
