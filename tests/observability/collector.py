"""A collector that takes OTLP over gRPC, in the protocol's own Python, and keeps what comes."""

import concurrent.futures
import threading

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

MOST_SPANS = 200_000


class Span:
    """A span, as far as the tests look at it."""

    def __init__(self, span):
        self.name, self.kind = span.name, span.kind
        self.id, self.parent = span.span_id.hex(), span.parent_span_id.hex()
        self.milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        self.attributes = {each.key: _plain(each.value) for each in span.attributes}

    def __repr__(self):
        return f"{self.name} ({self.milliseconds:.1f} ms) {self.attributes}"


def _plain(value):
    return getattr(value, value.WhichOneof("value"))


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens until it is stopped."""

    def __init__(self):
        self._traces, self._spans, self._lock = {}, 0, threading.Lock()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Export(self, request, context):  # noqa: N802, the protocol's name
        with self._lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self._spans += 1
                        assert self._spans < MOST_SPANS, "more than a test should send"
                        self._traces.setdefault(span.trace_id.hex(), []).append(Span(span))
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace):
        """The spans of a trace; none if it has not come."""
        with self._lock:
            return list(self._traces.get(trace, []))

    def stop(self):
        """Takes nothing more."""
        self._server.stop(0).wait()
