//! The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), as far as they are needed.
//!
//! Written by hand from the published field numbers: generated code would need `protoc` at build time, or bring all of Envoy's
//! API. Fields that are not here are passed over when they come, as protobuf has it.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// Where the service is.
pub const PATH: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Fields of `ProcessingRequest` that are pieces of bodies.
pub const BODY_TAGS: [u32; 2] = [4, 5];

/// `ProcessingRequest`: what the gateway says.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingRequest {
    /// What it is about.
    #[prost(oneof = "Said", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<Said>,
    /// What filters before have noted.
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    /// What its configuration asks for (`request_attributes`, `response_attributes`), by the filter's name.
    #[prost(map = "string, message", tag = "9")]
    pub attributes: HashMap<String, Struct>,
    /// It will not listen to answers.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// In the first message: how bodies are sent.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

/// The parts of a request and its response, as they come.
#[derive(Clone, PartialEq, Oneof)]
pub enum Said {
    /// The request's head.
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    /// The response's head.
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    /// A piece of the request's body.
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    /// A piece of the response's body.
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    /// The request's trailers: its body is over.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// The response's trailers: its body is over.
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// `ProtocolConfiguration`
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ProtocolConfiguration {
    /// How the request's body is sent.
    #[prost(enumeration = "BodyMode", tag = "1")]
    pub request_body_mode: i32,
    /// How the response's body is sent.
    #[prost(enumeration = "BodyMode", tag = "2")]
    pub response_body_mode: i32,
}

/// `ProcessingMode.BodySendMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum BodyMode {
    /// Not at all.
    None = 0,
    /// In pieces, each of which is answered.
    Streamed = 1,
    /// In one piece.
    Buffered = 2,
    /// In one piece, which is cut off where it is too long.
    BufferedPartial = 3,
    /// In pieces, and passed on in those that come back.
    FullDuplexStreamed = 4,
    /// Message by message.
    Grpc = 5,
}

/// `HttpHeaders`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpHeaders {
    /// All of them, `:method` and such as well.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// There is no body.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// `HttpBody`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpBody {
    /// A piece.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// It is the last.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// `HttpTrailers`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpTrailers {
    /// All of them.
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

/// `config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderMap {
    /// In order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// `config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderValue {
    /// In lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// As text, if the gateway sends it so.
    #[prost(string, tag = "2")]
    pub value: String,
    /// As bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    /// The value, whichever way it came.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.raw_value.is_empty() {
            self.value.as_bytes()
        } else {
            &self.raw_value
        }
    }
}

/// `config.core.v3.Metadata`
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// By namespace.
    #[prost(map = "string, message", tag = "1")]
    pub filter_metadata: HashMap<String, Struct>,
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    /// By name.
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// What it is, of what is of interest here.
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub kind: Option<Kind>,
}

/// What a value is.
#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
    /// An object.
    #[prost(message, tag = "5")]
    Struct(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    /// In order.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// `ProcessingResponse`: what the gateway is told.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingResponse {
    /// What it is about.
    #[prost(oneof = "Told", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<Told>,
    /// For filters after, by namespace.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

/// The answers to the parts.
#[derive(Clone, PartialEq, Oneof)]
pub enum Told {
    /// To the request's head.
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    /// To the response's head.
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    /// To a piece of the request's body.
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    /// To a piece of the response's body.
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    /// To the request's trailers.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    /// To the response's trailers.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    /// In place of all others: what the client is answered.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse`, and `BodyResponse`, which has the same form.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PartResponse {
    /// What is to be changed.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// `TrailersResponse`, without what is never changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct TrailersResponse {}

/// `CommonResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct CommonResponse {
    /// Of the head.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Of the body.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// The route may be another one now.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

/// `HeaderMutation`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderMutation {
    /// What is set.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    /// What is taken out.
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

/// `config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderValueOption {
    /// The header.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// What becomes of one that is there.
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// `HeaderValueOption.HeaderAppendAction`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    /// It is there as well.
    AppendIfExistsOrAdd = 0,
    /// It stays as it is.
    AddIfAbsent = 1,
    /// It is replaced.
    OverwriteIfExistsOrAdd = 2,
}

/// `BodyMutation`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct BodyMutation {
    /// What it is now.
    #[prost(oneof = "Mutation", tags = "1, 3")]
    pub mutation: Option<Mutation>,
}

/// What a body is now.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum Mutation {
    /// This, in place of what came.
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    /// This comes next, where pieces pass both ways.
    #[prost(message, tag = "3")]
    Streamed(StreamedBody),
}

/// `StreamedBodyResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StreamedBody {
    /// A piece.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// It is the last.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// `ImmediateResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ImmediateResponse {
    /// Its status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Its headers, beside the usual ones.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// Its body.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// For the gateway's log.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// `type.v3.HttpStatus`
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct HttpStatus {
    /// The number.
    #[prost(int32, tag = "1")]
    pub code: i32,
}
