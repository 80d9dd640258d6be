"""Answers: in one piece, or as server-sent events.

A stream has a role chunk, content chunks, a finish chunk, usage where it was asked for, ``[DONE]``. Everything that was
said since the last write goes into one chunk, so a slow reader makes chunks longer and never a queue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .engine import Turn


@dataclass(frozen=True)
class Reply:
    """What all chunks of a reply have in common."""

    id: str
    chat: bool
    created: int
    model: str
    cached_tokens_report: bool
    per_request_metrics: bool

    def usage(self, turn: Turn) -> dict[str, Any]:
        prompt, said = turn.asked.prompt_tokens, turn.said.tokens
        details = {"cached_tokens": turn.cached} if self.cached_tokens_report else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + said,
            "completion_tokens": said,
            "prompt_tokens_details": details,
        }

    def metrics(self, turn: Turn) -> dict[str, Any]:
        if not self.per_request_metrics:
            return {}
        return {"metrics": {"time_to_first_token_ms": turn.ttft_ms, "queue_time_ms": turn.queue_ms}}

    def whole(self, turn: Turn) -> dict[str, Any]:
        said = turn.said.text
        if self.chat:
            content: dict[str, Any] = {"message": {"role": "assistant", "content": said, "tool_calls": []}}
        else:
            content = {"text": said}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": turn.finish}
        object_name = "chat.completion" if self.chat else "text_completion"
        head = self._head(object_name)
        return {**head, "choices": [choice], "usage": self.usage(turn), **self.metrics(turn)}

    def first_event(self) -> bytes:
        """The role, in chats."""
        return self._event({"role": "assistant", "content": ""}, None) if self.chat else b""

    def content_event(self, said: str) -> bytes:
        return self._event(self._content(said), None)

    def last_events(self, turn: Turn) -> bytes:
        metrics = self.metrics(turn)
        if not turn.asked.include_usage:
            return self._event(self._content(""), turn.finish, metrics) + b"data: [DONE]\n\n"
        usage = self._data([], {"usage": self.usage(turn), **metrics})
        return self._event(self._content(""), turn.finish) + usage + b"data: [DONE]\n\n"

    def _content(self, said: str) -> dict[str, Any]:
        return {"content": said} if self.chat else {"text": said}

    def _event(self, content: dict[str, Any], finish: str | None, more: dict[str, Any] | None = None) -> bytes:
        said = {"delta": content} if self.chat else content
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self._data([choice], more or {})

    def _data(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        head = self._head("chat.completion.chunk" if self.chat else "text_completion")
        data = json.dumps({**head, "choices": choices, **more}, separators=(",", ":"))
        return f"data: {data}\n\n".encode()

    def _head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.model}
