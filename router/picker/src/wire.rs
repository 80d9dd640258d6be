//! The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), limited to the fields in use and written
//! by hand from the published field numbers (docs/decisions/0019-envoy-messages-by-hand.md). Unknown fields are skipped,
//! as protobuf specifies.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// The path of the service's method.
pub const PATH: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Tags of `ProcessingRequest`'s body fields.
pub const BODY_TAGS: [u32; 2] = [4, 5];

/// `ProcessingRequest`: a message of the gateway.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingRequest {
    /// The part it contains.
    #[prost(oneof = "RequestPart", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<RequestPart>,
    /// Metadata of earlier filters.
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    /// The configured attributes (`request_attributes`, `response_attributes`), by filter name.
    #[prost(map = "string, message", tag = "9")]
    pub attributes: HashMap<String, Struct>,
    /// The gateway ignores answers.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// In the first message: how bodies are sent.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

/// The parts of a request and its response.
#[derive(Clone, PartialEq, Oneof)]
pub enum RequestPart {
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
    /// The request's trailers, which end its body.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// The response's trailers, which end its body.
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
    /// Not sent.
    None = 0,
    /// In pieces, each of which is answered.
    Streamed = 1,
    /// In one piece.
    Buffered = 2,
    /// In one piece, truncated if too long.
    BufferedPartial = 3,
    /// In pieces, replaced by the answered ones.
    FullDuplexStreamed = 4,
    /// Message by message.
    Grpc = 5,
}

/// `HttpHeaders`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpHeaders {
    /// All headers, including pseudo-headers such as `:method`.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// There is no body.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// `HttpBody`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpBody {
    /// A piece of a body.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// It is the last piece.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// `HttpTrailers`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpTrailers {
    /// All trailers.
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

/// `config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderMap {
    /// The headers in order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// `config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderValue {
    /// The name in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value as text, if the gateway sends it so.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value as bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    /// Returns the value in either form.
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
    /// Metadata by namespace.
    #[prost(map = "string, message", tag = "1")]
    pub filter_metadata: HashMap<String, Struct>,
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    /// Values by name.
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The value, if it is of a supported kind.
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub kind: Option<Kind>,
}

/// The supported kinds of values.
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
    /// The elements in order.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// `ProcessingResponse`: an answer to the gateway.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingResponse {
    /// The answered part.
    #[prost(oneof = "AnswerPart", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<AnswerPart>,
    /// Metadata for later filters, by namespace.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

/// The answers to the parts.
#[derive(Clone, PartialEq, Oneof)]
pub enum AnswerPart {
    /// Answers the request's head.
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    /// Answers the response's head.
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    /// Answers a piece of the request's body.
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    /// Answers a piece of the response's body.
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    /// Answers the request's trailers.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    /// Answers the response's trailers.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    /// A response to the client, in place of all other answers.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse`, and `BodyResponse`, which has the same form.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PartResponse {
    /// The changes.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// `TrailersResponse`, without the mutations, which are not used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct TrailersResponse {}

/// `CommonResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct CommonResponse {
    /// Changes of the head.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Changes of the body.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// The gateway must choose the route again.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

/// `HeaderMutation`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderMutation {
    /// Headers to set.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    /// Headers to remove.
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

/// `config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderValueOption {
    /// The header.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// What to do if the header exists.
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// `HeaderValueOption.HeaderAppendAction`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    /// Append the value.
    AppendIfExistsOrAdd = 0,
    /// Keep the existing value.
    AddIfAbsent = 1,
    /// Replace the existing value.
    OverwriteIfExistsOrAdd = 2,
}

/// `BodyMutation`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct BodyMutation {
    /// The new content.
    #[prost(oneof = "Mutation", tags = "1, 3")]
    pub mutation: Option<Mutation>,
}

/// The new content of a body.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum Mutation {
    /// Replaces the received piece.
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    /// The next piece, in full duplex mode.
    #[prost(message, tag = "3")]
    Streamed(StreamedBody),
}

/// `StreamedBodyResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StreamedBody {
    /// A piece of the body.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// It is the last piece.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// `ImmediateResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ImmediateResponse {
    /// Its status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Additional headers.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// Its body.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Text for the gateway's log.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// `type.v3.HttpStatus`
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct HttpStatus {
    /// The status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
}
