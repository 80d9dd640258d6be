"""Clients that write every byte themselves: HTTP/1.1 on a socket, and HTTP/2 frames."""

import socket

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from cases import KEY

SECONDS = 20
FRAME = bytes([0x81, 0x82, 1, 2, 3, 4, ord("h") ^ 1, ord("i") ^ 2])
FRAME_BACK = bytes([0x81, 2]) + b"hi"
CLOSE = bytes([0x88, 0x80, 1, 2, 3, 4])


class Answer:
    def __init__(self, status, fields, body=b""):
        self.status, self.fields, self.body = status, fields, body


def fields_of(case):
    yield "x-case", str(case.number)
    yield "x-answer", case.answer
    if case.has_body:
        yield "content-type", case.content_type


def length_of(case):
    """The announced length, if any."""
    announced = {"zero": 0, "sized": 0, "short": 9, "longer": 0, "big": 0, "expect": 0}
    extra = announced.get(case.form)
    return None if extra is None else len(case.body) + extra


class Http1:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = b""

    def close(self):
        self.socket.close()

    def read_more(self):
        piece = self.socket.recv(65536)
        self.held += piece
        return piece

    def take(self, count):
        while len(self.held) < count:
            if not self.read_more():
                raise ConnectionError("the answer ended early")
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def take_until(self, end):
        while end not in self.held:
            if not self.read_more():
                raise ConnectionError("the answer ended early")
        taken, _, self.held = self.held.partition(end)
        return taken

    def head(self):
        lines = self.take_until(b"\r\n\r\n").decode().split("\r\n")
        fields = [line.split(": ", 1) for line in lines[1:]]
        return Answer(int(lines[0].split()[1]), {name.lower(): value for name, value in fields})

    def answer(self, method):
        while True:
            answer = self.head()
            if answer.status == 101 or answer.status >= 200:
                break
        if method == "HEAD" or answer.status in (101, 204, 304):
            return answer
        if answer.fields.get("transfer-encoding") == "chunked":
            while (size := int(self.take_until(b"\r\n"), 16)) > 0:
                answer.body += self.take(size + 2)[:-2]
            while self.take_until(b"\r\n"):
                pass
        elif "content-length" in answer.fields:
            answer.body = self.take(int(answer.fields["content-length"]))
        else:
            while self.read_more():
                pass
            answer.body, self.held = self.held, b""
        return answer

    def exchange(self, case):
        fields = [("host", "router.test"), *fields_of(case)]
        if case.upgrade:
            fields += [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"),
                       ("sec-websocket-key", KEY)]
        if case.form == "chunked":
            fields += [("transfer-encoding", "chunked"), ("trailer", "x-sum")]
        elif (length := length_of(case)) is not None:
            fields.append(("content-length", str(length)))
        if case.form == "expect":
            fields.append(("expect", "100-continue"))
        head = f"{case.method} {case.target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
        self.send(case, head.encode() + b"\r\n", case.body)
        if case.expected is None:
            return None
        if not case.comes_in_halves:
            answer = self.answer(case.method)
            return self.tunnel(answer) if answer.status == 101 else answer
        answer = self.answer(case.method)
        try:
            self.socket.sendall(self.rest)
        except OSError:
            pass  # The router need not read what the worker no longer wants.
        return answer

    def send(self, case, head, body):
        half = len(body) // 2 if case.comes_in_halves else len(body)
        pieces, rest = [body[:half]], [body[half:]]
        if case.form == "chunked":
            chunk = lambda piece: b"%x\r\n%s\r\n" % (len(piece), piece)
            pieces, rest = [chunk(pieces[0])], [chunk(rest[0])] if rest[0] else []
            (rest if rest else pieces).append(b"0\r\nx-sum: 1\r\n\r\n")
        if case.form == "longer":
            pieces.append(body)
        self.rest = b"".join(rest)
        if case.form == "expect" and not case.is_tunnel:
            self.socket.sendall(head)
            if self.head().status != 100:
                raise ConnectionError("no 100 Continue")
            head = b""
        self.socket.sendall(head + b"".join(pieces))

    def tunnel(self, answer):
        self.socket.sendall(FRAME)
        answer.body = self.take(len(FRAME_BACK))
        self.socket.sendall(CLOSE)
        return answer


class Http2:
    """One connection, made anew when it ends."""

    def __init__(self, port):
        self.port, self.socket = port, None

    def connect(self):
        self.close()
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False,
                                             normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(settings)
        self.h2.initiate_connection()
        self.flush()

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def exchange(self, case):
        if self.socket is None:
            self.connect()
        fields = [(":method", "CONNECT" if case.is_tunnel else case.method), (":scheme", "http"),
                  (":authority", "router.test"), (":path", case.target), *fields_of(case)]
        if case.is_tunnel:
            fields[1:1] = [(":protocol", "websocket")]
            fields.append(("sec-websocket-version", "13"))
        if (length := length_of(case)) is not None:
            fields.append(("content-length", str(length)))
        stream = self.h2.get_next_available_stream_id()
        ends = not case.has_body and not case.is_tunnel
        self.h2.send_headers(stream, fields, end_stream=ends)
        body = case.body * 2 if case.form == "longer" else case.body
        half = len(body) // 2 if case.comes_in_halves else len(body)
        if case.has_body:
            self.h2.send_data(stream, body[:half], end_stream=half == len(body) and case.form != "short")
        self.flush()
        if case.expected is None:
            return self.leave(stream, case)
        answer = self.answer(stream, case.is_tunnel)
        if case.comes_in_halves:
            try:
                self.h2.send_data(stream, body[half:], end_stream=True)
                self.flush()
            except h2.exceptions.ProtocolError:
                pass  # The router may have reset the stream, because the answer is complete.
        if answer is None:
            return None
        if case.is_tunnel and answer.status == 200:
            self.tunnel(stream, answer)
        elif case.is_tunnel:
            self.reset(stream)
        return answer

    def leave(self, stream, case):
        if case.form == "short":
            self.reset(stream)
        else:
            self.answer(stream, False)

    def reset(self, stream):
        try:
            self.h2.reset_stream(stream, error_code=8)
            self.flush()
        except h2.exceptions.ProtocolError:
            pass  # It has ended.

    def events(self):
        piece = self.socket.recv(65536)
        if not piece:
            self.close()
            raise ConnectionError("the connection ended")
        events = self.h2.receive_data(piece)
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if isinstance(event, h2.events.ConnectionTerminated):
                self.close()
                raise ConnectionError("the connection was terminated")
        self.flush()
        return events

    def answer(self, stream, is_tunnel):
        answer = None
        while True:
            for event in self.events():
                if getattr(event, "stream_id", None) != stream:
                    continue
                if isinstance(event, h2.events.ResponseReceived):
                    fields = dict(event.headers)
                    answer = Answer(int(fields[":status"]), fields)
                    if is_tunnel and answer.status == 200 and "x-echo" in fields and "content-length" not in fields:
                        return answer
                elif isinstance(event, h2.events.DataReceived):
                    answer.body += event.data
                elif isinstance(event, h2.events.StreamEnded):
                    return answer
                elif isinstance(event, h2.events.StreamReset):
                    return answer

    def tunnel(self, stream, answer):
        self.h2.send_data(stream, FRAME)
        self.flush()
        while len(answer.body) < len(FRAME_BACK):
            for event in self.events():
                if isinstance(event, h2.events.DataReceived) and event.stream_id == stream:
                    answer.body += event.data
                elif isinstance(event, h2.events.StreamEnded):
                    raise ConnectionError("the tunnel ended")
        self.h2.send_data(stream, CLOSE, end_stream=True)
        self.flush()
