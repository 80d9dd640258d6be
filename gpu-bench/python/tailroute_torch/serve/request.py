"""From a request's bytes to what the engine takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import fields
from .errors import ApiError, bad_request, too_long, unknown_model
from .memory import CacheTerms
from .tokens import Chain, Vocabulary

# In-request hint: how many tokens at the end of the finished turn may go first.
EVICT_FIRST_HEADER = "x-tailroute-evict-first-tokens"
_MOST_STOPS = 16
_LONGEST_STOP = 1024


@dataclass(frozen=True)
class Limits:
    """Of what is served."""

    model: str
    max_model_len: int
    block_tokens: int
    default_output_tokens: int


@dataclass(frozen=True)
class Asked:
    """One turn, checked."""

    chain: Chain
    prompt_tokens: int
    output_tokens: int
    # Where nobody names a limit the model ends its answer itself, so to speak.
    finish: str
    stops: tuple[str, ...]
    temperature: float
    seed: int
    terms: CacheTerms
    stream: bool
    include_usage: bool


def read(limits: Limits, vocabulary: Vocabulary, headers: Mapping[str, str], body: bytes) -> Asked:
    """A completion's request, of either kind."""
    values = parse(limits, body)
    if fields.whole(values, "n", 1) not in (None, 1):
        raise bad_request("`n` must be 1.")
    choice = values.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad_request("`tool_choice` must be `auto` or `none`: a model of random weights calls no tools.")
    most = (1 << 32) - 1
    wanted = fields.whole(values, "max_completion_tokens", 1, most)
    if wanted is None:
        wanted = fields.whole(values, "max_tokens", 1, most)
    tokens = prompt_tokens(vocabulary, values)
    limit = limits.default_output_tokens if wanted is None else wanted
    if len(tokens) + limit > limits.max_model_len:
        raise too_long(limits.max_model_len, len(tokens), limit)
    chain = Chain(limits.block_tokens, fields.text(values, "cache_salt"), tokens)
    temperature = fields.number(values, "temperature")
    natural_end = wanted is None and not fields.boolean(values, "ignore_eos")
    return Asked(
        chain=chain,
        prompt_tokens=len(tokens),
        output_tokens=limit,
        finish="stop" if natural_end else "length",
        stops=_stops(values),
        temperature=1.0 if temperature is None else max(0.0, temperature),
        seed=(chain.digest() + (fields.whole(values, "seed") or 0)) % (1 << 63),
        terms=_terms(values, headers),
        stream=fields.boolean(values, "stream") or False,
        include_usage=fields.boolean(_options(values), "include_usage") or False,
    )


def parse(limits: Limits, body: bytes) -> dict[str, Any]:
    """A body for the model that is served."""
    values = fields.parse_object(body)
    model = fields.text(values, "model")
    if model not in (None, limits.model):
        raise unknown_model(model)
    return values


def prompt_tokens(vocabulary: Vocabulary, values: dict[str, Any]) -> list[int]:
    """By the chat template, or of a plain prompt."""
    messages, prompt = values.get("messages"), values.get("prompt")
    if messages is not None:
        tokens = _template(vocabulary, values, messages)
    elif isinstance(prompt, str):
        tokens = vocabulary.text(prompt)
    elif isinstance(prompt, list):
        tokens = _listed(vocabulary, prompt)
    elif prompt is None:
        raise bad_request("`messages` or `prompt` is required.")
    else:
        raise _bad_prompt()
    if not tokens:
        raise bad_request("The prompt is empty.")
    return tokens


def _listed(vocabulary: Vocabulary, prompt: list[Any]) -> list[int]:
    if prompt and all(isinstance(text, str) for text in prompt):
        if len(prompt) > 1:
            raise bad_request("Exactly one prompt per request is supported.")
        return vocabulary.text(prompt[0])
    for token in prompt:
        if not isinstance(token, int) or isinstance(token, bool):
            raise _bad_prompt()
        if not 0 <= token < vocabulary.size:
            raise bad_request(f"`prompt`: token {token} is not in the vocabulary of {vocabulary.size}.")
    return prompt


def _bad_prompt() -> ApiError:
    return bad_request("`prompt` must be a text, a list with one text, or a list of tokens.")


def _template(vocabulary: Vocabulary, values: dict[str, Any], messages: Any) -> list[int]:
    """``<|role|>content<|end|>`` for each message, tools first."""
    if not isinstance(messages, list):
        raise bad_request("`messages` must be a list.")
    tokens: list[int] = []
    if values.get("tools"):
        tokens.append(vocabulary.marker("tools"))
        tokens += vocabulary.text(_compact(values["tools"]))
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise bad_request(f"`messages[{at}].role` is required and must be a text.")
        tokens.append(vocabulary.marker(message["role"]))
        for part in _parts(message):
            tokens += vocabulary.text(part)
        tokens.append(vocabulary.marker("<|end|>"))
    if fields.boolean(values, "add_generation_prompt") is not False:
        tokens.append(vocabulary.marker("assistant"))
    return tokens


def _parts(message: dict[str, Any]) -> list[str]:
    """Everything of a message that the model reads."""
    content = message.get("content")
    said = content if isinstance(content, list) else [content]
    parts = [message.get("name")]
    parts += [part.get("text", part) if isinstance(part, dict) else part for part in said]
    parts += [message.get("tool_call_id"), message.get("tool_calls")]
    return [part if isinstance(part, str) else _compact(part) for part in parts if part]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _options(values: dict[str, Any]) -> dict[str, Any]:
    options = values.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object.")
    return options or {}


def _stops(values: dict[str, Any]) -> tuple[str, ...]:
    stop = values.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise bad_request("`stop` must be a text or a list of texts.")
    if len(stops) > _MOST_STOPS or any(len(one) > _LONGEST_STOP for one in stops):
        raise bad_request(f"`stop`: at most {_MOST_STOPS} texts of at most {_LONGEST_STOP} characters.")
    return tuple(one for one in stops if one)


def _terms(values: dict[str, Any], headers: Mapping[str, str]) -> CacheTerms:
    xargs = values.get("vllm_xargs")
    named = (
        headers.get("x-session-id"),
        fields.text(values, "session_id"),
        fields.text(xargs, "session_id") if isinstance(xargs, dict) else None,
    )
    tail = headers.get(EVICT_FIRST_HEADER)
    if tail is not None and not (tail.isascii() and tail.isdigit() and len(tail) < 19):
        raise bad_request(f"`{EVICT_FIRST_HEADER}` must be a whole number of tokens.")
    session = next((name for name in named if name is not None), None)
    return CacheTerms(session, None if tail is None else int(tail))
