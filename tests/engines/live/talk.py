"""Conversations with the tiny model, and what they find cached."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import BLOCK, HOME, MODEL, http, key_of
from transformers import AutoTokenizer

_tokenizer = AutoTokenizer.from_pretrained(str(Path(HOME) / "model-1"))


def _words() -> list[tuple[int, str]]:
    """Tokens that are whole words with a space before: any text of them is read back as the same tokens."""
    found = []
    for token, at in _tokenizer.get_vocab().items():
        if token.startswith("Ġ") and len(token) > 2 and token[1:].isascii() and token[1:].isalpha():
            found.append((at, " " + token[1:]))
    return sorted(found)


WORDS = _words()
# A random model says anything, which need not be read back as the tokens that it said. Of a trained one that is rare.
SAYABLE = [at for at, _ in WORDS]


def words(seed: int, tokens: int) -> str:
    """A text of so many tokens."""
    chance = random.Random(seed)
    return "".join(chance.choice(WORDS)[1] for _ in range(tokens))


def ids(seed: int, tokens: int) -> list[int]:
    """A prompt of so many tokens."""
    chance = random.Random(seed)
    return [chance.choice(SAYABLE) for _ in range(tokens)]


@dataclass
class Usage:
    """What an answer reported."""

    prompt: int
    completion: int
    cached: int


def usage(answer: dict[str, Any]) -> Usage:
    said = answer["usage"]
    details = said.get("prompt_tokens_details") or {}
    return Usage(said["prompt_tokens"], said["completion_tokens"], details.get("cached_tokens") or 0)


@dataclass
class Conversation:
    """A chat that grows by what was asked and answered."""

    name: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def fork(self, name: str | None, turns: int) -> Conversation:
        """Another conversation with the same beginning."""
        return Conversation(name, [dict(message) for message in self.messages[: 1 + 2 * turns]])

    def say(self, url: str, text: str, tokens: int, **more: Any) -> Usage:
        """One turn, at a router or at an engine."""
        self.messages.append({"role": "user", "content": text})
        body = {
            "model": MODEL,
            "messages": self.messages,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "temperature": 1.0,
            "seed": len(self.messages),
            "allowed_token_ids": SAYABLE,
            **more,
        }
        headers = {} if self.name is None else {"X-Session-ID": self.name}
        answer = http.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        read = answer.json()
        self.messages.append({"role": "assistant", "content": read["choices"][0]["message"]["content"]})
        return usage(read)


def complete(
    url: str, prompt: list[int], session: str | None, last: bool = False, tenant: str | None = None, **more: Any
) -> Usage:
    """One completion of a prompt of token ids, of one token. The conversation's last, if its client says so."""
    headers = {} if session is None else {"X-Session-ID": session}
    if tenant is not None:
        headers["Authorization"] = f"Bearer {key_of(tenant)}"
    if last:
        headers["X-Session-End"] = "1"
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, **more}
    answer = http.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return usage(answer.json())


def blocks(tokens: int) -> int:
    """Full blocks."""
    return tokens // BLOCK
