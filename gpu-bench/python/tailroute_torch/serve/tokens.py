"""A tokenizer that needs no data: deterministic, and stable under appending.

Text is cut into pieces of at most six bytes; white space begins a piece. A token is the piece's checksum, folded into
the model's vocabulary. Different pieces may share a token: as far as the model goes they are then the same. What it may
say is a list of words of exactly one piece with tokens of their own, so a reply that comes back as history becomes the
tokens that were generated, and the next turn hits the cache through it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import string
import zlib
from collections.abc import Iterable

from .cache import BlockHash

_PIECE = re.compile(rb"[ \t\n\x0b\x0c\r][^ \t\n\x0b\x0c\r]{0,5}|[^ \t\n\x0b\x0c\r]{1,6}")
_MARKERS = ("<|end|>", "system", "user", "assistant", "tool", "developer", "function", "tools")
# Template markers have tokens of their own; roles that are none of the known share the rest of these.
_SPECIAL = 32
_MOST_WORDS = 4096


class Vocabulary:
    """Text to tokens, and what can be said back to text."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._words: dict[int, str] = {}
        for letters in itertools.product(string.ascii_lowercase, repeat=3):
            if len(self._words) >= min(size // 2, _MOST_WORDS):
                break
            word = " " + "".join(letters)
            self._words.setdefault(self._of_piece(word.encode()), word)
        # Every token that may be said.
        self.sayable = sorted(self._words)

    def text(self, prompt: str) -> list[int]:
        # Lone surrogates are valid JSON and no UTF-8.
        return [self._of_piece(piece) for piece in _PIECE.findall(prompt.encode("utf-8", "surrogatepass"))]

    def marker(self, name: str) -> int:
        """The token of a template marker, which no text can spell."""
        if name in _MARKERS:
            return _MARKERS.index(name)
        spare = _SPECIAL - len(_MARKERS)
        return len(_MARKERS) + zlib.crc32(name.encode("utf-8", "surrogatepass")) % spare

    def word(self, token: int) -> str:
        return self._words[token]

    def _of_piece(self, piece: bytes) -> int:
        return _SPECIAL + zlib.crc32(piece) % (self.size - _SPECIAL)


class Chain:
    """Names the blocks of a growing sequence: each name stands for the whole prefix up to its end."""

    def __init__(self, block_tokens: int, salt: str | None, tokens: Iterable[int] = ()) -> None:
        self._block_tokens = block_tokens
        self.tokens: list[int] = []
        self.names: list[BlockHash] = []
        self._parent = hashlib.blake2b((salt or "").encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) % self._block_tokens == 0:
            block = self.tokens[-self._block_tokens :]
            said = b"".join(token.to_bytes(4, "little") for token in block)
            self._parent = hashlib.blake2b(self._parent + said, digest_size=16).digest()
            self.names.append(self._parent)

    def digest(self) -> int:
        """A number that depends on every token so far."""
        rest = self.tokens[len(self.names) * self._block_tokens :]
        said = self._parent + b"".join(token.to_bytes(4, "little") for token in rest)
        return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")
