"""A client of few words."""

from __future__ import annotations

import http.client
import json
from typing import Any

CHAT = "/v1/chat/completions"


class Client:
    """Talks to one server on this machine."""

    def __init__(self, port: int, patience_s: float = 120.0) -> None:
        self._port, self._patience_s = port, patience_s

    def open(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._patience_s)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        return connection.getresponse()

    def call(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        answer = self.open(method, path, body, headers)
        said = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(said) if is_json else said.decode()

    def chat(self, text: str, headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        return self.talk([("user", text)], headers, **more)

    def talk(self, turns: list[tuple[str, str]], headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        messages = [{"role": role, "content": text} for role, text in turns]
        status, answer = self.call("POST", CHAT, {"messages": messages, **more}, headers)
        assert status == 200, answer
        return answer

    def stream(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[Any]:
        """Every event, `[DONE]` as such."""
        answer = self.open("POST", path, {**body, "stream": True}, headers)
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in answer.read().decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def content(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def streamed(events: list[Any]) -> str:
    choices = [event["choices"][0] for event in events if isinstance(event, dict) and event["choices"]]
    return "".join(choice.get("delta", {}).get("content", "") + choice.get("text", "") for choice in choices)


def words(count: int) -> str:
    """As many tokens, each of one piece."""
    return "".join(f" w{at}" for at in range(count))
