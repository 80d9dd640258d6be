//! Parses the heads that a gateway sends, and its list of eligible workers.

use std::net::SocketAddr;

use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};

use super::wire::{self, Metadata, ProcessingRequest, ValueKind};
use protocol::error::ApiError;
use protocol::{headers, references};
use proxy::path::among::Among;

/// Header and metadata key of the chosen endpoints.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Metadata namespace of the chosen endpoints, and of the one that served.
pub(super) const NAMESPACE: &str = "envoy.lb";
const SERVED: &str = "x-gateway-destination-endpoint-served";
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Attribute with the endpoint that served, if a plain Envoy is configured to send it.
const UPSTREAM: &str = "upstream.address";

/// Largest number of fields of a head: the data port's hundred, and HTTP/2's pseudo-headers.
const MOST_FIELDS: usize = 104;

/// Parses the head of a request. Fails if it is invalid or exceeds the data port's limits on fields and bytes.
pub(super) fn request(said: &wire::HttpHeaders, max_bytes: usize) -> Result<Request<()>, ApiError> {
    let all = said.headers.iter().flat_map(|headers| &headers.headers);
    let (mut fields, mut bytes) = (0, 0);
    for header in all {
        (fields, bytes) = (fields + 1, bytes + header.key.len() + header.bytes().len());
    }
    if fields > MOST_FIELDS || bytes > max_bytes {
        return Err(ApiError::HeadersTooLarge);
    }
    let mut request = Request::new(());
    let mut is_whole = [false; 2];
    for header in said.headers.iter().flat_map(|headers| &headers.headers) {
        let value = header.bytes();
        match &*header.key {
            ":method" => {
                *request.method_mut() = Method::from_bytes(value).map_err(|_| ApiError::MalformedHttp)?;
                is_whole[0] = true;
            }
            ":path" => {
                let target = PathAndQuery::try_from(value).map_err(|_| ApiError::MalformedHttp)?;
                *request.uri_mut() = Uri::from(target);
                is_whole[1] = true;
            }
            ":authority" => add(request.headers_mut(), HOST, value)?,
            pseudo if pseudo.starts_with(':') => {}
            name => {
                let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ApiError::MalformedHttp)?;
                add(request.headers_mut(), name, value)?;
            }
        }
    }
    if is_whole == [true; 2] {
        Ok(request)
    } else {
        Err(ApiError::MalformedHttp)
    }
}

fn add(headers: &mut HeaderMap, name: HeaderName, value: &[u8]) -> Result<(), ApiError> {
    let value = HeaderValue::from_bytes(value).map_err(|_| ApiError::MalformedHttp)?;
    let added = headers.try_append(name, value);
    added.map(drop).map_err(|_| ApiError::HeadersTooLarge)
}

/// Parses the head of a response: its status, and the headers that describe its body.
pub(super) fn response(said: &wire::HttpHeaders) -> (StatusCode, HeaderMap) {
    let (mut status, mut headers) = (StatusCode::BAD_GATEWAY, HeaderMap::new());
    for header in said.headers.iter().flat_map(|headers| &headers.headers) {
        match &*header.key {
            ":status" => status = StatusCode::from_bytes(header.bytes()).unwrap_or(status),
            "content-type" | "content-encoding" => {
                if let Ok(name) = HeaderName::from_bytes(header.key.as_bytes()) {
                    // Invalid headers are ignored.
                    let _ = add(&mut headers, name, header.bytes());
                }
            }
            _ => {}
        }
    }
    (status, headers)
}

/// Returns the names of the response's headers that only the router may set, with empty values.
pub(super) fn routers_own(said: &wire::HttpHeaders) -> HeaderMap {
    let all = said.headers.iter().flat_map(|headers| &headers.headers);
    let names = all.filter_map(|header| HeaderName::from_bytes(header.key.as_bytes()).ok());
    names
        .filter(|name| headers::is_routers_own(name.as_str()))
        .map(|name| (name, HeaderValue::from_static("")))
        .collect()
}

/// Returns the response headers that may refer to a worker.
pub(super) fn references(said: &wire::HttpHeaders) -> HeaderMap {
    let mut references = HeaderMap::new();
    for header in said.headers.iter().flat_map(|headers| &headers.headers) {
        if let Ok(name) = HeaderName::from_bytes(header.key.as_bytes())
            && references::is_reference(&name)
        {
            // Invalid headers are ignored.
            let _ = add(&mut references, name, header.bytes());
        }
    }
    references
}

/// Returns the workers that the gateway lists, or all if it lists none. Entries that are no addresses match none.
pub(super) fn among(said: &ProcessingRequest) -> Among {
    let listed = said.metadata_context.as_ref();
    let Some(listed) = listed.and_then(|metadata| field(metadata, SUBSET_NAMESPACE, SUBSET)) else {
        return Among::Addressed;
    };
    let mut addresses: Vec<SocketAddr> = match listed {
        ValueKind::List(list) => list.values.iter().filter_map(address).collect(),
        ValueKind::Text(text) => text
            .split(',')
            .filter_map(|one| one.trim().parse().ok())
            .collect(),
        ValueKind::Struct(_) => Vec::new(),
    };
    addresses.sort_unstable();
    addresses.dedup();
    Among::Listed(addresses)
}

/// Returns the endpoint that served, if the gateway reports it.
pub(super) fn served(said: &ProcessingRequest) -> Option<SocketAddr> {
    let metadata = said.metadata_context.as_ref();
    let told = metadata.and_then(|metadata| field(metadata, NAMESPACE, SERVED));
    let attribute = || {
        let mut all = said.attributes.values();
        all.find_map(|attributes| attributes.fields.get(UPSTREAM)?.kind.as_ref())
    };
    match told.or_else(attribute)? {
        ValueKind::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn field<'a>(metadata: &'a Metadata, namespace: &str, name: &str) -> Option<&'a ValueKind> {
    let fields = &metadata.filter_metadata.get(namespace)?.fields;
    // A present but unusable value counts as an empty list, not as absent.
    const EMPTY: &ValueKind = &ValueKind::Text(String::new());
    fields.get(name).map(|value| value.kind.as_ref().unwrap_or(EMPTY))
}

fn address(value: &wire::Value) -> Option<SocketAddr> {
    match value.kind.as_ref()? {
        ValueKind::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const MOST_BYTES: usize = 64 << 10;

    fn headers(pairs: &[(&str, &str)]) -> wire::HttpHeaders {
        let header = |(key, value): &(&str, &str)| wire::HeaderValue {
            key: (*key).to_owned(),
            raw_value: value.to_string().into(),
            ..wire::HeaderValue::default()
        };
        wire::HttpHeaders {
            headers: Some(wire::HeaderMap {
                headers: pairs.iter().map(header).collect(),
            }),
            end_of_stream: false,
        }
    }

    fn with(namespace: &str, name: &str, kind: Option<ValueKind>) -> ProcessingRequest {
        let fields = HashMap::from([(name.to_owned(), wire::Value { kind })]);
        let noted = wire::Struct { fields };
        ProcessingRequest {
            metadata_context: Some(Metadata {
                filter_metadata: HashMap::from([(namespace.to_owned(), noted)]),
            }),
            ..ProcessingRequest::default()
        }
    }

    fn text(text: &str) -> ValueKind {
        ValueKind::Text(text.to_owned())
    }

    #[test]
    fn a_head_is_read_as_it_was_sent() {
        let said = headers(&[
            (":method", "POST"),
            (":path", "/v1/chat/completions?a=b"),
            (":authority", "models.example"),
            (":scheme", "https"),
            ("x-a", "1"),
            ("x-a", "2"),
        ]);
        let read = request(&said, MOST_BYTES).unwrap();
        assert_eq!(
            (read.method(), read.uri().to_string().as_str()),
            (&Method::POST, "/v1/chat/completions?a=b")
        );
        assert_eq!(read.headers()["host"], "models.example");
        assert_eq!(read.headers().get_all("x-a").iter().count(), 2);
    }

    #[test]
    fn an_invalid_head_is_rejected() {
        let line = [(":method", "GET"), (":path", "/")];
        for said in [&line[..1], &line[1..], &[], &[line[0], line[1], ("a b", "")]] {
            assert!(
                matches!(request(&headers(said), MOST_BYTES), Err(ApiError::MalformedHttp)),
                "{said:?}"
            );
        }
        let names: Vec<String> = (line.len()..=MOST_FIELDS).map(|at| format!("x-{at}")).collect();
        let many: Vec<_> = names.iter().map(|name| (&**name, "")).collect();
        let many = [&line[..], &many].concat();
        let is_refused =
            |said, max_bytes| matches!(request(&headers(said), max_bytes), Err(ApiError::HeadersTooLarge));
        assert!(is_refused(&many, MOST_BYTES));
        assert!(!is_refused(&many[1..], MOST_BYTES));
        assert!(is_refused(&line, 10));
    }

    #[test]
    fn a_list_of_endpoints_bounds_the_choice_even_if_it_is_empty() {
        let hint = |kind| among(&with(SUBSET_NAMESPACE, SUBSET, kind));
        let list = |texts: &[&str]| {
            let values = texts.iter().map(|one| wire::Value {
                kind: Some(text(one)),
            });
            Some(ValueKind::List(wire::ListValue {
                values: values.collect(),
            }))
        };
        let both = ["10.0.0.1:80", "[fd00::1]:80"].map(|address| address.parse().unwrap());
        assert_eq!(
            hint(list(&["[fd00::1]:80", "10.0.0.1:80", "vllm:80", "10.0.0.1:80"])),
            Among::Listed(both.to_vec())
        );
        assert_eq!(
            hint(Some(text("10.0.0.1:80, [fd00::1]:80"))),
            Among::Listed(both.to_vec())
        );
        for nobody in [list(&[]), Some(text("")), None] {
            assert_eq!(hint(nobody), Among::Listed(Vec::new()));
        }
        assert_eq!(among(&ProcessingRequest::default()), Among::Addressed);
        assert_eq!(among(&with(NAMESPACE, SUBSET, list(&[]))), Among::Addressed);
    }

    #[test]
    fn the_serving_endpoint_is_read_from_metadata_or_an_attribute() {
        let address = "10.0.0.1:80".parse().ok();
        assert_eq!(
            served(&with(NAMESPACE, SERVED, Some(text("10.0.0.1:80")))),
            address
        );
        let fields = HashMap::from([(
            UPSTREAM.to_owned(),
            wire::Value {
                kind: Some(text("10.0.0.1:80")),
            },
        )]);
        let said = ProcessingRequest {
            attributes: HashMap::from([("envoy.filters.http.ext_proc".to_owned(), wire::Struct { fields })]),
            ..ProcessingRequest::default()
        };
        assert_eq!(served(&said), address);
        assert_eq!(served(&ProcessingRequest::default()), None);
        assert_eq!(served(&with(NAMESPACE, SERVED, Some(text("a pod")))), None);
    }

    #[test]
    fn a_response_head_has_the_status_and_the_body_headers() {
        let (status, read) = response(&headers(&[
            (":status", "200"),
            ("content-type", "text/event-stream"),
            ("x", "y"),
        ]));
        assert_eq!((status, read.len()), (StatusCode::OK, 1));
        let own = routers_own(&headers(&[
            ("x-tailroute-error", "evil"),
            ("X-RateLimit-New", "evil"),
            ("x-engine", "1"),
        ]));
        let mut own: Vec<_> = own.keys().map(HeaderName::as_str).collect();
        own.sort_unstable();
        assert_eq!(own, ["x-ratelimit-new", "x-tailroute-error"]);
        assert_eq!(response(&headers(&[])).0, StatusCode::BAD_GATEWAY);
    }
}
