"""The matrix: every exchange with its bytes, and what a proxy that never smuggles makes of it."""

import hashlib
import itertools
import json
from dataclasses import dataclass

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
ROUTES = {
    "turn": "/v1/chat/completions",
    "form": "/v1/audio/transcriptions",
    "kept": "/v1/responses/resp_1",
    "other": "/v1/files/f",
    "realtime": "/v1/realtime?model=sim",
}
# `none`: no length; `zero`: a length of 0; `sized`: a length; `chunked`: no length, with a trailer; `short`: less than
# announced, then the client leaves; `longer`: more than announced; `big`: more than one read; `expect`: 100-continue.
BODIES = ["none", "zero", "sized", "chunked", "short", "longer"]
ANSWERS = ["200", "404", "early", "closed"]
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


@dataclass
class Case:
    number: int
    version: str
    method: str
    route: str
    form: str
    answer: str
    upgrade: bool = False

    @property
    def target(self):
        path = ROUTES[self.route]
        return f"{path}{'&' if '?' in path else '?'}case={self.number}"

    @property
    def has_body(self):
        return self.form not in ("none", "zero")

    @property
    def body(self):
        """The body: requests to a control endpoint, as a worker would take them that lost its place."""
        if not self.has_body:
            return b""
        evil = f"POST /reset_prefix_cache?case={self.number} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" * 2
        if self.route == "turn":
            content = f"\r\n{evil}"
            return json.dumps({"model": "sim", "max_tokens": 1,
                               "messages": [{"role": "user", "content": content}]}).encode()
        body = ("\r\n" * 4 + evil).encode()
        if self.form == "big":
            body = b"\r\n" * 300_000 + body
        if self.route == "form":
            part = "--B\r\nContent-Disposition: form-data; name=\"{}\"{}\r\n\r\n"
            body = (part.format("model", "") + "sim\r\n" + part.format("file", "; filename=\"a\"")).encode() + body
            body += b"\r\n--B--\r\n"
        return body

    @property
    def content_type(self):
        kinds = {"turn": "application/json", "form": "multipart/form-data; boundary=B"}
        return kinds.get(self.route, "application/octet-stream")

    @property
    def is_tunnel(self):
        return self.upgrade and self.method == "GET"

    @property
    def is_streamed(self):
        """Whether the router passes the body on while it comes, so that a worker can answer before its end."""
        is_repeatable = self.method not in ("POST", "PATCH")
        return self.route != "turn" and (self.form == "chunked" or (self.form in ("sized", "expect") and not is_repeatable))

    @property
    def comes_in_halves(self):
        """Whether the client sends the second half of its body after the answer."""
        return self.answer == "early" and self.is_streamed and not self.upgrade

    @property
    def is_unfit(self):
        """Whether the answer would open a tunnel in HTTP/2 that the worker has not opened."""
        return self.is_tunnel and self.version == "2" and self.answer == "200"

    @property
    def reaches_a_worker(self):
        if self.expected is None:
            return None
        return self.expected[1] or self.expected[0] == 502

    @property
    def expected(self):
        """The answer's status, and whether it is the worker's; None: the client leaves before an answer."""
        if self.is_tunnel and (self.has_body or (self.version == "2" and self.form == "zero")):
            return 400, False
        if self.form == "short" or (self.version == "2" and self.form == "longer"):
            return None
        is_turn = self.route == "turn" and not self.is_tunnel
        if is_turn and self.method not in ("POST", "OPTIONS"):
            return 405, False
        if is_turn and self.method == "POST" and not self.has_body:
            return 400, False
        if self.answer in ("closed", "switch") or self.is_unfit:
            return 502, False
        return {"early": 404, "interim": 200}.get(self.answer) or int(self.answer), True

    def echo(self, digest):
        return f"{self.number} {self.method} {digest}"

    @property
    def digest(self):
        return hashlib.sha256(self.body).hexdigest()

    def __str__(self):
        upgrade = " upgrade" if self.upgrade else ""
        return f"#{self.number} HTTP/{self.version} {self.method} {self.route}{upgrade}, {self.form}, {self.answer}"


def all_cases(takes_tunnels):
    """All cells, for a worker that opens tunnels or does not. A realtime path without an upgrade is like `other`."""
    numbers = itertools.count(0, 2)
    plain = itertools.product(METHODS, ROUTES, BODIES, ANSWERS)
    more = itertools.product(METHODS, ["turn", "form", "other"], ["none", "sized"], ["204", "304", "interim", "switch"])
    wide = itertools.product(["POST", "PUT"], ["form", "other"], ["big", "expect"], ANSWERS)
    for method, route, form, answer in [*plain, *more, *wide]:
        for version in "12":
            if version == "1" or form not in ("big", "expect"):
                yield Case(next(numbers), version, method, route, form, answer)
    for method, route, form in itertools.product(METHODS, ROUTES, BODIES):
        answers = ["101", *ANSWERS] if takes_tunnels and method == "GET" else ANSWERS
        for answer in answers:
            yield Case(next(numbers), "1", method, route, form, answer, upgrade=True)
    for route, form in itertools.product(ROUTES, ["none", "zero"]):
        answers = ["101", *ANSWERS] if takes_tunnels else ANSWERS
        for answer in answers:
            yield Case(next(numbers), "2", "GET", route, form, answer, upgrade=True)


def victim_of(case):
    """A harmless request after each cell, on the connection that the cell would have left to it."""
    route, method = [("form", "POST"), ("kept", "GET"), ("turn", "POST")][case.number // 2 % 3]
    return Case(case.number + 1, "1", method, route, "none" if method == "GET" else "sized", "200")
