//! A gateway: sends and receives Envoy's messages, and forwards the request.

#![expect(clippy::disallowed_types, reason = "the gateway is no worker")]

use std::collections::HashMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::uri::PathAndQuery;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use picker::wire::{
    self, AnswerPart, BodyMode, CommonResponse, HttpBody, HttpHeaders, HttpTrailers, ImmediateResponse,
    Metadata, Mutation, ProcessingRequest, ProcessingResponse, ProtocolConfiguration, RequestPart, Struct,
    ValueKind,
};
use serde_json::Value as Json;
use tailroute_e2e::client::{self, CHAT, Fields};
use tailroute_e2e::wait::within;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";

/// A connection to the picker's port.
#[derive(Clone)]
pub(crate) struct Gateway {
    client: Client<HttpConnector, tonic::body::Body>,
    origin: http::Uri,
    pub(crate) modes: Option<[BodyMode; 2]>,
}

/// The stream of one request. Dropping it resets the stream.
pub(crate) struct Stream {
    said: Option<mpsc::UnboundedSender<ProcessingRequest>>,
    told: Streaming<ProcessingResponse>,
    modes: [BodyMode; 2],
}

/// The routing of a request.
#[derive(Debug)]
pub(crate) struct Named {
    /// The endpoints, the best one first.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// The headers set, without the endpoints.
    pub(crate) set: HashMap<String, String>,
    pub(crate) removed: Vec<String>,
    pub(crate) body: Bytes,
}

/// A forwarded request.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) named: Named,
    pub(crate) status: u16,
    /// The headers added to the response.
    pub(crate) marks: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn headers(pairs: Fields<'_>) -> wire::HeaderMap {
    let header = |(key, value): &(&str, &str)| wire::HeaderValue {
        key: (*key).to_owned(),
        raw_value: (*value).to_owned().into(),
        ..wire::HeaderValue::default()
    };
    wire::HeaderMap {
        headers: pairs.iter().map(header).collect(),
    }
}

fn said(request: RequestPart) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

pub(crate) fn text(text: &str) -> wire::Value {
    wire::Value {
        kind: Some(ValueKind::Text(text.to_owned())),
    }
}

pub(crate) fn metadata(namespace: &str, name: &str, value: wire::Value) -> Metadata {
    let fields = HashMap::from([(name.to_owned(), value)]);
    Metadata {
        filter_metadata: HashMap::from([(namespace.to_owned(), Struct { fields })]),
    }
}

/// Returns metadata that restricts the eligible endpoints.
pub(crate) fn subset(endpoints: &[SocketAddr]) -> Metadata {
    let values = endpoints.iter().map(|endpoint| text(&endpoint.to_string()));
    let list = wire::Value {
        kind: Some(ValueKind::List(wire::ListValue {
            values: values.collect(),
        })),
    };
    metadata(
        "envoy.lb.subset_hint",
        "x-gateway-destination-endpoint-subset",
        list,
    )
}

pub(crate) fn served(endpoint: &str) -> Metadata {
    metadata(
        "envoy.lb",
        "x-gateway-destination-endpoint-served",
        text(endpoint),
    )
}

impl Gateway {
    pub(crate) fn connect(picker: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build(HttpConnector::new());
        Self {
            client,
            origin: format!("http://{picker}").parse().unwrap(),
            modes: Some([BodyMode::FullDuplexStreamed; 2]),
        }
    }

    /// Returns the same gateway with other body modes.
    pub(crate) fn sending(&self, request: BodyMode, response: BodyMode) -> Self {
        Self {
            modes: Some([request, response]),
            ..self.clone()
        }
    }

    /// Calls a method of the port.
    pub(crate) async fn call(&self, path: &'static str) -> Result<Stream, Status> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let outgoing = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let mut grpc = tonic::client::Grpc::with_origin(self.client.clone(), self.origin.clone());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static(path);
        let codec = ProstCodec::<ProcessingRequest, ProcessingResponse>::default();
        let answer = within(grpc.streaming(tonic::Request::new(outgoing), path, codec)).await?;
        Ok(Stream {
            said: Some(sender),
            told: answer.into_inner(),
            modes: self.modes.unwrap_or([BodyMode::FullDuplexStreamed; 2]),
        })
    }

    /// Sends a request's head.
    pub(crate) async fn open(
        &self,
        (method, path): (&str, &str),
        fields: Fields<'_>,
        end_of_stream: bool,
        metadata_context: Option<Metadata>,
    ) -> Stream {
        let mut all = vec![
            (":method", method),
            (":path", path),
            (":scheme", "http"),
            (":authority", "gateway.test"),
        ];
        all.extend(fields);
        let stream = self.call(wire::PATH).await.unwrap();
        stream.say(ProcessingRequest {
            request: Some(RequestPart::RequestHeaders(HttpHeaders {
                headers: Some(headers(&all)),
                end_of_stream,
            })),
            metadata_context,
            protocol_config: self.modes.map(|[request, response]| ProtocolConfiguration {
                request_body_mode: request as i32,
                response_body_mode: response as i32,
            }),
            ..ProcessingRequest::default()
        });
        stream
    }

    /// Sends a chat request, with the body in three pieces if the mode allows it.
    pub(crate) async fn chat(&self, fields: Fields<'_>, body: &[u8], metadata: Option<Metadata>) -> Stream {
        let mut stream = self.open(("POST", CHAT), fields, false, metadata).await;
        if stream.modes[0] == BodyMode::Buffered {
            let head = stream.told().await.unwrap();
            let unchanged = wire::PartResponse::default();
            assert_eq!(head.response, Some(AnswerPart::RequestHeaders(unchanged)));
            stream.body(body, true);
            return stream;
        }
        let third = body.len() / 3;
        stream.body(&body[..third], false);
        stream.body(&body[third..2 * third], false);
        stream.body(&body[2 * third..], true);
        stream
    }

    /// Sends a chat request. Returns its routing.
    pub(crate) async fn name(&self, body: &Json, metadata: Option<Metadata>) -> (Stream, Named) {
        let mut stream = self.chat(&[], body.to_string().as_bytes(), metadata).await;
        let named = stream.named().await;
        (stream, named)
    }

    /// Sends a chat request, forwards it, and sends the response to the picker.
    pub(crate) async fn carry(&self, fields: Fields<'_>, body: &Json) -> Carried {
        let mut stream = self.chat(fields, body.to_string().as_bytes(), None).await;
        let named = stream.named().await;
        let endpoint = named.endpoints[0];
        stream.carry(named, endpoint, None).await
    }
}

impl Stream {
    pub(crate) fn say(&self, message: ProcessingRequest) {
        self.said.as_ref().unwrap().send(message).unwrap();
    }

    pub(crate) fn body(&self, body: &[u8], end_of_stream: bool) {
        self.say(said(RequestPart::RequestBody(HttpBody {
            body: Bytes::copy_from_slice(body),
            end_of_stream,
        })));
    }

    pub(crate) fn trailers(&self) {
        self.say(said(RequestPart::RequestTrailers(HttpTrailers::default())));
    }

    pub(crate) fn answer(&self, status: u16, kind: &str, end_of_stream: bool, metadata: Option<Metadata>) {
        let status = status.to_string();
        self.say(ProcessingRequest {
            metadata_context: metadata,
            ..said(RequestPart::ResponseHeaders(HttpHeaders {
                headers: Some(headers(&[(":status", &status), ("content-type", kind)])),
                end_of_stream,
            }))
        });
    }

    pub(crate) fn answer_body(&self, body: &[u8], end_of_stream: bool) {
        self.say(said(RequestPart::ResponseBody(HttpBody {
            body: Bytes::copy_from_slice(body),
            end_of_stream,
        })));
    }

    /// Returns the next message.
    pub(crate) async fn told(&mut self) -> Result<ProcessingResponse, Status> {
        within(self.told.message())
            .await
            .map(|told| told.expect("the stream goes on"))
    }

    /// Returns the picker's immediate response, which ends the stream.
    pub(crate) async fn immediate(&mut self) -> (u16, HashMap<String, String>, Json) {
        let told = self.told().await.unwrap().response;
        let Some(AnswerPart::Immediate(ImmediateResponse {
            status,
            headers,
            body,
            details,
            ..
        })) = told
        else {
            panic!("{told:?}")
        };
        assert!(within(self.told.message()).await.unwrap().is_none());
        let body: Json = serde_json::from_slice(&body).unwrap();
        let set = set(&headers.unwrap());
        assert_eq!(details, format!("tailroute_{}", set["x-tailroute-error"]));
        (status.unwrap().code as u16, set, body)
    }

    /// Returns the routing of the request, from messages in Envoy's order.
    pub(crate) async fn named(&mut self) -> Named {
        let first = self.told().await.unwrap();
        let noted = first.dynamic_metadata.clone();
        let (mut named, changed) = match first.response {
            Some(AnswerPart::RequestHeaders(part)) => (of_head(part.response.as_ref().unwrap()), None),
            Some(AnswerPart::RequestBody(part)) => {
                assert_eq!(self.modes[0], BodyMode::Buffered);
                let common = part.response.unwrap();
                (of_head(&common), common.body_mutation)
            }
            other => panic!("{other:?}"),
        };
        let said = named.set.remove(DESTINATION).expect("endpoints in a header");
        named.endpoints = said.split(',').map(|one| one.parse().unwrap()).collect();
        let noted = noted.expect("endpoints in metadata").fields;
        let Some(ValueKind::Struct(lb)) = &noted["envoy.lb"].kind else {
            panic!("{noted:?}")
        };
        assert_eq!(lb.fields[DESTINATION], text(&said), "the same in both places");
        match changed.and_then(|body| body.mutation) {
            Some(Mutation::Body(body)) => named.body = body,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        named
    }

    /// Reads the pieces of the body until the last one.
    pub(crate) async fn pieces(&mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        loop {
            let told = self.told().await.unwrap();
            let Some(AnswerPart::RequestBody(part)) = told.response else {
                panic!("{told:?}")
            };
            let Some(Mutation::Streamed(piece)) = part.response.unwrap().body_mutation.unwrap().mutation
            else {
                panic!("no piece")
            };
            assert!(piece.body.len() <= 64 * 1024);
            whole.extend_from_slice(&piece.body);
            if piece.end_of_stream {
                return whole;
            }
        }
    }

    /// Forwards the request to an endpoint, and sends the response to the picker.
    pub(crate) async fn carry(
        mut self,
        mut named: Named,
        endpoint: SocketAddr,
        by: Option<Metadata>,
    ) -> Carried {
        if self.modes[0] == BodyMode::FullDuplexStreamed {
            named.body = self.pieces().await.into();
        }
        let fields: Vec<(&str, &str)> = named
            .set
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let mut answer = client::open(endpoint, "POST", CHAT, &fields, named.body.clone())
            .await
            .unwrap();
        let status = answer.status.as_u16();
        let kind = answer.header("content-type").unwrap_or_default().to_owned();
        self.answer(status, &kind, false, by);
        let told = self.told().await.unwrap();
        let Some(AnswerPart::ResponseHeaders(part)) = told.response else {
            panic!("{told:?}")
        };
        let marks = set(part.response.unwrap().header_mutation.as_ref().unwrap());
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await {
            let chunk = chunk.unwrap();
            body.extend_from_slice(&chunk);
            if self.modes[1] != BodyMode::None {
                self.answer_body(&chunk, false);
                self.goes_on(&chunk).await;
            }
        }
        if self.modes[1] != BodyMode::None {
            self.answer_body(b"", true);
            self.goes_on(b"").await;
        }
        self.ends().await;
        Carried {
            named,
            status,
            marks,
            body,
        }
    }

    /// Checks that a piece of the response is passed on unchanged.
    pub(crate) async fn goes_on(&mut self, piece: &[u8]) {
        let told = self.told().await.unwrap();
        let Some(AnswerPart::ResponseBody(part)) = told.response else {
            panic!("{told:?}")
        };
        let mutation = part.response.and_then(|common| common.body_mutation?.mutation);
        match mutation {
            Some(Mutation::Streamed(streamed)) => assert_eq!(&*streamed.body, piece),
            None => assert_eq!(self.modes[1], BodyMode::Streamed),
            other => panic!("{other:?}"),
        }
    }

    /// Closes the sending side, and waits until the picker sends nothing more.
    pub(crate) async fn ends(mut self) {
        self.said = None;
        assert!(within(self.told.message()).await.unwrap().is_none());
    }
}

fn of_head(common: &CommonResponse) -> Named {
    assert!(common.clear_route_cache, "the route may go by the header");
    let changes = common.header_mutation.as_ref().unwrap();
    Named {
        endpoints: Vec::new(),
        set: set(changes),
        removed: changes.remove_headers.clone(),
        body: Bytes::new(),
    }
}

fn set(changes: &wire::HeaderMutation) -> HashMap<String, String> {
    let header = |option: &wire::HeaderValueOption| {
        let header = option.header.clone().unwrap();
        let value = String::from_utf8(header.bytes().to_vec()).unwrap();
        (header.key, value)
    };
    changes.set_headers.iter().map(header).collect()
}
