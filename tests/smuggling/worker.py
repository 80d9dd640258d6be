"""A worker on uvicorn that reports each request that it parses, one line of JSON per event on stdout.

    worker.py h11|httptools none|websockets|wsproto

The first line is its port. A request's `x-answer` selects what it is answered, and when.
"""

import asyncio
import hashlib
import itertools
import json
import socket
import sys

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTIONS = {}
connection_ids, request_ids = itertools.count(), itertools.count()


def report(**event):
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def numbered(protocol):
    class Numbered(protocol):
        def connection_made(self, transport):
            # A socket that was made elsewhere has none of asyncio's settings, and would delay the second write of an answer.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            CONNECTIONS[transport.get_extra_info("peername")] = (next(connection_ids), transport)
            super().connection_made(transport)

    return Numbered


def begin(scope, method):
    fields = dict(scope["headers"])
    text = {name: fields.get(name.encode(), b"").decode() for name in ("x-case", "x-answer", "via")}
    number, (connection, transport) = next(request_ids), CONNECTIONS[tuple(scope["client"])]
    target = scope["raw_path"].decode()
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode()
    report(event="begin", request=number, connection=connection, case=text["x-case"], method=method, target=target,
           via=text["via"], length=fields.get(b"content-length", b"").decode(),
           upgrade=scope["type"] == "websocket")
    return number, transport, text["x-case"], text["x-answer"]


def echo(case, method, digest):
    return [(b"content-type", b"application/json"), (b"x-echo", f"{case or '-'} {method} {digest}".encode())]


async def respond(send, status, headers, body=b"{}"):
    if status not in (204, 304):
        headers = headers + [(b"content-length", str(len(body)).encode())]
    else:
        body = b""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def http(scope, receive, send):
    method = scope["method"]
    number, transport, case, answer = begin(scope, method)
    if answer == "early":
        await respond(send, 404, echo(case, method, "-"))
        return
    body, is_whole = b"", False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        is_whole = not message.get("more_body")
    digest = hashlib.sha256(body).hexdigest()
    report(event="end", request=number, size=len(body), digest=digest, whole=is_whole)
    if answer == "closed":
        transport.close()
        await asyncio.Event().wait()
    if not case:
        models = b'{"object":"list","data":[{"id":"sim","object":"model"}]}'
        known = {"/health": b"{}", "/v1/models": models}.get(scope["path"])
        await respond(send, 404 if known is None else 200, echo(case, method, digest), known or b"{}")
        return
    if answer == "interim":
        transport.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n")
    if answer == "switch":
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        await asyncio.Event().wait()
    status = int(answer) if answer.isdigit() and answer != "101" else 200
    await respond(send, status, echo(case, method, digest))


async def websocket(scope, receive, send):
    number, transport, case, answer = begin(scope, "GET")
    report(event="end", request=number, size=0, digest=hashlib.sha256(b"").hexdigest(), whole=True)
    await receive()
    if answer == "closed":
        transport.close()
        return
    if answer != "101":
        headers = echo(case, "GET", hashlib.sha256(b"").hexdigest()) + [(b"content-length", b"2")]
        status = int(answer) if answer.isdigit() else 404
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b"{}"})
        return
    await send({"type": "websocket.accept", "headers": [(b"x-echo", f"{case} GET".encode())]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def app(scope, receive, send):
    if scope["type"] == "http":
        await http(scope, receive, send)
    elif scope["type"] == "websocket":
        await websocket(scope, receive, send)


def main():
    protocol = {"h11": H11Protocol, "httptools": HttpToolsProtocol}[sys.argv[1]]
    listener = socket.create_server(("127.0.0.1", 0))
    report(event="port", port=listener.getsockname()[1])
    settings = uvicorn.Config(app, http=numbered(protocol), ws=sys.argv[2], lifespan="off", log_level="critical",
                              timeout_keep_alive=600, access_log=False, proxy_headers=False)
    uvicorn.Server(settings).run(sockets=[listener])


main()
