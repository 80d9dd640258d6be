// A worker on Node's http that reports each request that it parses, one line of JSON per event on stdout.
//
//     worker.mjs none|own        without or with WebSockets
//
// The first line is its port. A request's `x-answer` selects what it is answered, and when.
import crypto from "node:crypto";
import http from "node:http";

const report = (event) => process.stdout.write(JSON.stringify(event) + "\n");
const digestOf = (bytes) => crypto.createHash("sha256").update(bytes).digest("hex");
let connections = 0;
let requests = 0;

function begin(request, upgrade) {
  const number = requests++;
  const field = (name) => request.headers[name] ?? "";
  report({
    event: "begin", request: number, connection: request.socket.number, case: field("x-case"), method: request.method,
    target: request.url, via: field("via"), length: field("content-length"), upgrade,
  });
  return number;
}

function respond(response, status, echo, body = "{}") {
  const headers = { "content-type": "application/json", "x-echo": echo };
  const isBare = status === 204 || status === 304;
  if (!isBare) headers["content-length"] = Buffer.byteLength(body);
  response.writeHead(status, headers);
  response.end(isBare ? undefined : body);
}

function serve(request, response) {
  const number = begin(request, false);
  const { "x-case": name = "", "x-answer": answer = "" } = request.headers;
  const pieces = [];
  const end = (whole) => {
    const body = Buffer.concat(pieces);
    report({ event: "end", request: number, size: body.length, digest: digestOf(body), whole });
  };
  request.on("data", (piece) => pieces.push(piece));
  request.on("error", () => {});
  request.on("close", () => request.complete || end(false));
  if (answer === "early") {
    respond(response, 404, `${name} ${request.method} -`);
    request.on("end", () => end(true));
    return;
  }
  request.on("end", () => {
    end(true);
    const echo = `${name} ${request.method} ${digestOf(Buffer.concat(pieces))}`;
    if (answer === "closed") return request.socket.destroy();
    if (name === "") {
      const models = '{"object":"list","data":[{"id":"sim","object":"model"}]}';
      const known = { "/health": "{}", "/v1/models": models }[request.url];
      return respond(response, known === undefined ? 404 : 200, echo, known);
    }
    if (answer === "interim") response.writeEarlyHints({ link: "</a>; rel=preload" });
    if (answer === "switch") {
      request.socket.write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
      return;
    }
    respond(response, /^[2-9]\d\d$/.test(answer) ? Number(answer) : 200, echo);
  });
}

// Echoes short masked text frames.
function tunnel(request, socket) {
  const number = begin(request, true);
  report({ event: "end", request: number, size: 0, digest: digestOf(""), whole: true });
  const { "x-case": name = "", "x-answer": answer = "", "sec-websocket-key": key = "" } = request.headers;
  socket.on("error", () => {});
  if (answer === "closed") return socket.destroy();
  if (answer !== "101") {
    const status = /^[2-9]\d\d$/.test(answer) ? answer : "404";
    socket.write(`HTTP/1.1 ${status} X\r\nx-echo: ${name} GET ${digestOf("")}\r\ncontent-length: 2\r\n\r\n{}`);
    return;
  }
  const accept = crypto.createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
  socket.write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    + `sec-websocket-accept: ${accept}\r\nx-echo: ${name} GET\r\n\r\n`);
  let held = Buffer.alloc(0);
  socket.on("data", (piece) => {
    held = Buffer.concat([held, piece]);
    while (held.length >= 6 && held.length >= 6 + (held[1] & 127)) {
      const length = held[1] & 127;
      const data = held.subarray(6, 6 + length).map((byte, at) => byte ^ held[2 + (at % 4)]);
      const isText = (held[0] & 15) === 1;
      held = held.subarray(6 + length);
      if (!isText) return socket.end();
      socket.write(Buffer.concat([Buffer.from([129, length]), data]));
    }
  });
}

const server = http.createServer({ keepAliveTimeout: 600_000 }, serve);
server.on("connection", (socket) => { socket.number = connections++; });
if (process.argv[2] === "own") server.on("upgrade", tunnel);
server.listen(0, "127.0.0.1", () => report({ event: "port", port: server.address().port }));
