//! The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), limited to the fields in use and written
//! by hand from the published field numbers (docs/decisions/0019-envoy-messages-by-hand.md). Unknown fields are skipped,
//! as protobuf specifies.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// Path of the service's method.
pub const PATH: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Tags of `ProcessingRequest`'s body fields.
pub const BODY_TAGS: [u32; 2] = [4, 5];

/// `ProcessingRequest`: a message of the gateway.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingRequest {
    /// Part that the message contains.
    #[prost(oneof = "RequestPart", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<RequestPart>,
    /// Metadata of earlier filters.
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    /// The configured attributes (`request_attributes`, `response_attributes`), by filter name.
    #[prost(map = "string, message", tag = "9")]
    pub attributes: HashMap<String, Struct>,
    /// Whether the gateway ignores answers.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// Modes in which bodies are sent; in the first message only.
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

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ProtocolConfiguration {
    /// Mode in which the request's body is sent.
    #[prost(enumeration = "BodyMode", tag = "1")]
    pub request_body_mode: i32,
    /// Mode in which the response's body is sent.
    #[prost(enumeration = "BodyMode", tag = "2")]
    pub response_body_mode: i32,
}

/// `ProcessingMode.BodySendMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum BodyMode {
    /// The body is not sent.
    None = 0,
    /// The body is sent in pieces, each of which is answered.
    Streamed = 1,
    /// The body is sent in one piece.
    Buffered = 2,
    /// The body is sent in one piece, truncated if too long.
    BufferedPartial = 3,
    /// The body is sent in pieces, which the answered pieces replace.
    FullDuplexStreamed = 4,
    /// The body is sent as gRPC messages.
    Grpc = 5,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpHeaders {
    /// All headers, including pseudo-headers such as `:method`.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// Whether there is no body.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpBody {
    /// A piece of a body.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// Whether this is the last piece.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HttpTrailers {
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

/// `config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderMap {
    /// Headers in order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// `config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderValue {
    /// Name in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value as text, if the gateway sends it so.
    #[prost(string, tag = "2")]
    pub value: String,
    /// Value as bytes, if the gateway sends it so.
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
    /// Value, if it is of a supported kind.
    #[prost(oneof = "ValueKind", tags = "3, 5, 6")]
    pub kind: Option<ValueKind>,
}

/// The supported kinds of values.
#[derive(Clone, PartialEq, Oneof)]
pub enum ValueKind {
    #[prost(string, tag = "3")]
    Text(String),
    /// An object.
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    /// Elements in order.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// `ProcessingResponse`: an answer to the gateway.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingResponse {
    /// Answered part.
    #[prost(oneof = "AnswerPart", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<AnswerPart>,
    /// Metadata for later filters, by namespace.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

/// An answer to a part.
#[derive(Clone, PartialEq, Oneof)]
pub enum AnswerPart {
    /// The answer to the request's head.
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    /// The answer to the response's head.
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    /// The answer to a piece of the request's body.
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    /// The answer to a piece of the response's body.
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    /// The answer to the request's trailers.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    /// The answer to the response's trailers.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    /// A response to the client, in place of all other answers.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse`, and `BodyResponse`, which has the same form.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PartResponse {
    /// Changes of the part.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// `TrailersResponse`, without the mutations, which are not used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct TrailersResponse {}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct CommonResponse {
    /// Changes of the head.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Changes of the body.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// Whether the gateway must choose the route again.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

/// `config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Action if the header exists: see [`AppendAction`].
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// `HeaderValueOption.HeaderAppendAction`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    /// The value is appended.
    AppendIfExistsOrAdd = 0,
    /// The existing value is kept.
    AddIfAbsent = 1,
    /// The value replaces the existing one.
    OverwriteIfExistsOrAdd = 2,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct BodyMutation {
    /// New content of the body.
    #[prost(oneof = "Mutation", tags = "1, 3")]
    pub mutation: Option<Mutation>,
}

/// The new content of a body.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum Mutation {
    /// Content that replaces the received piece.
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    /// Next piece, in full duplex mode.
    #[prost(message, tag = "3")]
    Streamed(StreamedBody),
}

/// `StreamedBodyResponse`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StreamedBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// Whether this is the last piece.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Headers to add.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Text for the gateway's log.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// `type.v3.HttpStatus`
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}
