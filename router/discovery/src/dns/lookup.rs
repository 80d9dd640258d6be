//! Lookups of SRV records and addresses. `hickory-net` sends the queries, and this module applies the search list and
//! tries each server in turn. `hickory-resolver` is not used, because it does not bound what it copies of a referral
//! (docs/decisions/0014-discovery-clients.md).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_net::NetError;
use hickory_net::proto::op::{DnsRequestOptions, DnsResponse, Query, ResponseCode};
use hickory_net::proto::rr::{Name, RData, Record, RecordType};
use hickory_net::runtime::TokioRuntimeProvider;
use hickory_net::tcp::TcpClientStream;
use hickory_net::udp::UdpClientStream;
use hickory_net::xfer::{DnsHandle as _, FirstAnswer as _};

use super::system::{self, System};

const ROUNDS: usize = 2;
const MAX_ADDRESSES: usize = 16;

pub(super) struct Resolver {
    system: System,
    timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Srv {
    pub(super) priority: u16,
    pub(super) port: u16,
    /// Name without the final dot; empty for the root.
    pub(super) host: String,
}

#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) srv: Vec<Srv>,
    pub(super) beside: BTreeMap<String, ResolvedAddresses>,
    pub(super) ttl: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ResolvedAddresses {
    pub(super) ips: Vec<IpAddr>,
    pub(super) ttl: Option<Duration>,
}

impl Resolver {
    /// Creates a resolver from the settings, or else from the system's configuration.
    pub(super) fn new(settings: &config::Dns) -> Result<Self, String> {
        let system = match settings.server {
            Some(server) => System::only(server),
            None => {
                let text = config::file::read_text(system::FILE.as_ref(), system::MAX_FILE_BYTES);
                System::read(&text.map_err(|error| format!("{} cannot be read: {error}", system::FILE))?)
            }
        };
        if system.servers.is_empty() {
            return Err(format!(
                "{} lists no nameserver: set discovery.dns.server",
                system::FILE
            ));
        }
        let timeout = settings.timeout;
        Ok(Self { system, timeout })
    }

    pub(super) async fn srv(&self, name: &str) -> Result<Records, String> {
        for name in self.system.names(name) {
            let records = Records::of(&self.ask(&name, RecordType::SRV).await?);
            if !records.srv.is_empty() {
                return Ok(records);
            }
        }
        Ok(Records::default())
    }

    /// Looks up the addresses of a host: IPv4, or IPv6 if there are none.
    pub(super) async fn addresses(&self, host: &str) -> Result<ResolvedAddresses, String> {
        let four = ResolvedAddresses::of(&self.ask(host, RecordType::A).await?, RecordType::A);
        if !four.ips.is_empty() {
            return Ok(four);
        }
        let six = self.ask(host, RecordType::AAAA).await?;
        Ok(ResolvedAddresses::of(&six, RecordType::AAAA))
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Result<DnsResponse, String> {
        let no_name = |error| format!("{name:?} is not a valid name: {error}");
        let mut whole = Name::from_ascii(name).map_err(no_name)?;
        whole.set_fqdn(true);
        let query = Query::query(whole, kind);
        let mut last = String::new();
        for _ in 0..ROUNDS {
            for &server in &self.system.servers {
                let asked = tokio::time::timeout(self.timeout, self.exchange(server, &query)).await;
                match asked {
                    Ok(Ok(response)) => match response.response_code {
                        ResponseCode::NoError | ResponseCode::NXDomain => return Ok(response),
                        code => last = format!("{server}: response code {code:?}"),
                    },
                    Err(_) | Ok(Err(NetError::Timeout)) => {
                        last = format!("no answer within {} s", self.timeout.as_secs_f64());
                    }
                    Ok(Err(error)) => last = format!("{server}: {error}"),
                }
            }
        }
        Err(format!("{name} ({kind}): {last}"))
    }

    async fn exchange(&self, server: SocketAddr, query: &Query) -> Result<DnsResponse, NetError> {
        let mut options = DnsRequestOptions::default();
        options.use_edns = false;
        // Dropping it ends the tasks of the exchange.
        let provider = TokioRuntimeProvider::new();
        let udp = UdpClientStream::builder(server, provider.clone()).with_timeout(Some(self.timeout));
        let response = udp
            .exchange()
            .lookup(query.clone(), options)
            .first_answer()
            .await?;
        if !response.truncation {
            return Ok(response);
        }
        let tcp = TcpClientStream::exchange(server, None, self.timeout, None, provider.clone()).await?;
        let response = tcp.lookup(query.clone(), options).first_answer().await?;
        match response.truncation {
            true => Err(NetError::Message("the response is truncated")),
            false => Ok(response),
        }
    }
}

impl Records {
    fn of(response: &DnsResponse) -> Self {
        let mut records = Self::default();
        for record in &response.answers {
            if let RData::SRV(srv) = &record.data {
                records.srv.push(Srv {
                    priority: srv.priority,
                    port: srv.port,
                    host: text(&srv.target),
                });
                records.ttl = shortest(records.ttl, record);
            }
        }
        for record in &response.additionals {
            if let Some(ip) = address(&record.data, RecordType::A) {
                let beside = records.beside.entry(text(&record.name)).or_default();
                beside.add(ip, record);
            }
        }
        records.beside.values_mut().for_each(ResolvedAddresses::tidy);
        records
    }
}

impl ResolvedAddresses {
    fn of(response: &DnsResponse, kind: RecordType) -> Self {
        let mut addresses = Self::default();
        for record in &response.answers {
            if let Some(ip) = address(&record.data, kind) {
                addresses.add(ip, record);
            }
        }
        addresses.tidy();
        addresses
    }

    fn add(&mut self, ip: IpAddr, record: &Record) {
        self.ips.push(ip);
        self.ttl = shortest(self.ttl, record);
    }

    fn tidy(&mut self) {
        self.ips.sort();
        self.ips.dedup();
        self.ips.truncate(MAX_ADDRESSES);
    }
}

fn address(data: &RData, kind: RecordType) -> Option<IpAddr> {
    match (data, kind) {
        (RData::A(four), RecordType::A) => Some(four.0.into()),
        (RData::AAAA(six), RecordType::AAAA) => Some(six.0.into()),
        _ => None,
    }
}

fn text(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').map_or(text.clone(), str::to_owned)
}

fn shortest(one: Option<Duration>, record: &Record) -> Option<Duration> {
    let ttl = Duration::from_secs(record.ttl.into());
    Some(one.map_or(ttl, |one| one.min(ttl)))
}

#[cfg(test)]
mod tests {
    use hickory_net::proto::op::Message;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Name servers are not trusted, so any bytes may arrive.
        #[test]
        fn no_reply_is_too_strange_to_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0..600_usize) {
            let read = |reply: Vec<u8>| {
                if let Ok(response) = DnsResponse::from_buffer(reply) {
                    let _ = (Records::of(&response), ResolvedAddresses::of(&response, RecordType::A));
                }
            };
            read(bytes.clone());
            // A response with a valid header.
            let mut query = Message::query();
            query.add_query(Query::query(Name::from_ascii("_http._tcp.vllm.inference.svc.").unwrap(), RecordType::SRV));
            let mut reply = query.to_vec().unwrap();
            reply[2] |= 0x80;
            reply[7] = 3;
            let at = at.min(reply.len());
            reply.splice(at.., bytes);
            read(reply);
        }
    }
}
