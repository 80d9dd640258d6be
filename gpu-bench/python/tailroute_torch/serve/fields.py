"""Typed fields out of JSON, with errors that name the field."""

from __future__ import annotations

import json
import math
from typing import Any

from .errors import bad_request


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"Invalid JSON body: {error}") from None
    if not isinstance(value, dict):
        raise bad_request("Invalid JSON body: expected an object.")
    return value


def text(values: dict[str, Any], name: str) -> str | None:
    return _typed(values, name, str, "a text")


def boolean(values: dict[str, Any], name: str) -> bool | None:
    return _typed(values, name, bool, "true or false")


def whole(values: dict[str, Any], name: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int | None:
    value = _typed(values, name, int, "a whole number")
    if isinstance(value, bool):
        raise bad_request(f"`{name}` must be a whole number.")
    if value is not None and not least <= value <= most:
        raise bad_request(f"`{name}` must be at least {least} and at most {most}.")
    return value


def number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise bad_request(f"`{name}` must be a finite number.")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _typed(values: dict[str, Any], name: str, kind: type, called: str) -> Any:
    value = values.get(name)
    if value is not None and not isinstance(value, kind):
        raise bad_request(f"`{name}` must be {called}.")
    return value


def _no_number(said: str) -> float:
    raise ValueError(f"{said} is no number")
