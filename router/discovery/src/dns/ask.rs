//! Questions to name servers: over UDP, and over TCP where an answer does not fit.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use super::system::{self, System};

/// How often each server is asked.
const ROUNDS: usize = 2;
/// Longest answer over UDP that is read. Servers keep to 512 bytes.
const LONGEST_DATAGRAM: usize = 4_096;
/// Most addresses that are taken of one name.
const MOST_ADDRESSES: usize = 16;

/// Who is asked, and how long for.
pub(super) struct Resolver {
    system: System,
    timeout: Duration,
}

/// A record that names a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Srv {
    pub(super) priority: u16,
    pub(super) port: u16,
    /// Without the last dot; empty for the root.
    pub(super) host: String,
}

/// What was answered: records, and the addresses that came with them.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) records: Vec<Srv>,
    pub(super) beside: BTreeMap<String, Vec<IpAddr>>,
    addresses: Vec<IpAddr>,
}

impl Resolver {
    /// Of the settings, or of the system.
    ///
    /// # Errors
    /// If the system knows no server.
    pub(super) fn new(settings: &config::Dns) -> Result<Self, String> {
        let system = match settings.server {
            Some(server) => System::only(server),
            None => {
                let text = config::file::read_text(system::FILE.as_ref(), system::LONGEST_FILE_BYTES);
                System::read(&text.map_err(|error| format!("{} cannot be read: {error}", system::FILE))?)
            }
        };
        if system.servers.is_empty() {
            return Err(format!(
                "{} names no server: set discovery.dns.server",
                system::FILE
            ));
        }
        let timeout = settings.timeout;
        Ok(Self { system, timeout })
    }

    /// The SRV records of a name; none if it has none.
    pub(super) async fn srv(&self, name: &str) -> Result<Answer, String> {
        for name in self.system.names(name) {
            let answer = self.ask(&name, TYPE::SRV).await?;
            if !answer.records.is_empty() {
                return Ok(answer);
            }
        }
        Ok(Answer::default())
    }

    /// The addresses of a host: those of IPv4, or if there are none those of IPv6.
    pub(super) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let four = self.ask(host, TYPE::A).await?.addresses;
        if !four.is_empty() {
            return Ok(four);
        }
        Ok(self.ask(host, TYPE::AAAA).await?.addresses)
    }

    /// Asks each server until one answers.
    async fn ask(&self, name: &str, kind: TYPE) -> Result<Answer, String> {
        let mut last = String::new();
        for _ in 0..ROUNDS {
            for &server in &self.system.servers {
                let asked = tokio::time::timeout(self.timeout, exchange(server, name, kind)).await;
                match asked {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(why)) => last = why,
                    Err(_) => last = format!("no answer within {} s", self.timeout.as_secs_f64()),
                }
            }
        }
        Err(format!("{name} ({kind:?}): {last}"))
    }
}

async fn exchange(server: SocketAddr, name: &str, kind: TYPE) -> Result<Answer, String> {
    let mut id = [0; 2];
    // Who cannot see the question does not know the number of its answer.
    aws_lc_rs::rand::fill(&mut id).map_err(|_| "no randomness".to_owned())?;
    let id = u16::from_be_bytes(id);
    let question = question(id, name, kind)?;
    let failed = |error: io::Error| format!("{server}: {error}");
    let reply = over_udp(server, &question, id).await.map_err(failed)?;
    match read(&reply, id, kind).map_err(|why| format!("{server}: {why}"))? {
        Some(answer) => Ok(answer),
        None => {
            let reply = over_tcp(server, &question).await.map_err(failed)?;
            let answer = read(&reply, id, kind).map_err(|why| format!("{server}: {why}"))?;
            answer.ok_or_else(|| format!("{server}: its answer is cut off"))
        }
    }
}

fn question(id: u16, name: &str, kind: TYPE) -> Result<Vec<u8>, String> {
    let no_name = |error| format!("{name:?} is no name: {error}");
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(no_name)?;
    packet
        .questions
        .push(Question::new(name, QTYPE::TYPE(kind), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(|error| error.to_string())
}

async fn over_udp(server: SocketAddr, question: &[u8], id: u16) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Nobody else's answer is read.
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut reply = vec![0; LONGEST_DATAGRAM];
    loop {
        let length = socket.recv(&mut reply).await?;
        // What answers another question is passed over.
        if length >= 2 && reply[..2] == id.to_be_bytes() {
            reply.truncate(length);
            return Ok(reply);
        }
    }
}

async fn over_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).unwrap_or(u16::MAX);
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(question).await?;
    let length = stream.read_u16().await?;
    let mut reply = vec![0; length.into()];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

/// What a reply says; `None` if not all of it fitted.
fn read(reply: &[u8], id: u16, kind: TYPE) -> Result<Option<Answer>, String> {
    let packet = Packet::parse(reply).map_err(|error| format!("its answer makes no sense: {error}"))?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return Err("its answer is to another question".to_owned());
    }
    match packet.rcode() {
        RCODE::NoError | RCODE::NameError => {}
        code => return Err(format!("it answers {code:?}")),
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Ok(None);
    }
    let mut answer = Answer::default();
    for record in &packet.answers {
        match &record.rdata {
            RData::SRV(srv) if kind == TYPE::SRV => answer.records.push(Srv {
                priority: srv.priority,
                port: srv.port,
                host: srv.target.to_string().to_ascii_lowercase(),
            }),
            other => answer.addresses.extend(address(other, kind)),
        }
    }
    tidy(&mut answer.addresses);
    for record in &packet.additional_records {
        let name = record.name.to_string().to_ascii_lowercase();
        answer
            .beside
            .entry(name)
            .or_default()
            .extend(address(&record.rdata, TYPE::A));
    }
    answer.beside.retain(|_, addresses| {
        tidy(addresses);
        !addresses.is_empty()
    });
    Ok(Some(answer))
}

fn tidy(addresses: &mut Vec<IpAddr>) {
    addresses.sort();
    addresses.dedup();
    addresses.truncate(MOST_ADDRESSES);
}

fn address(data: &RData<'_>, kind: TYPE) -> Option<IpAddr> {
    match (data, kind) {
        (RData::A(four), TYPE::A) => Some(Ipv4Addr::from(four.address).into()),
        (RData::AAAA(six), TYPE::AAAA) => Some(Ipv6Addr::from(six.address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A name server may be anybody's.
        #[test]
        fn no_reply_is_too_strange_to_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0..600_usize) {
            let _ = read(&bytes, 7, TYPE::SRV);
            // One that begins well.
            let mut reply = question(7, "_http._tcp.vllm.inference.svc", TYPE::SRV).unwrap();
            reply[2] |= 0x80;
            reply[7] = 3;
            let at = at.min(reply.len());
            reply.splice(at.., bytes);
            let _ = read(&reply, 7, TYPE::SRV);
        }
    }
}
