"""The text of a reply as it grows, up to the first stop text."""

from __future__ import annotations


class Said:
    """Written by the engine's thread; others read ``text[:safe]``, which only grows."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.tokens = 0
        self.text = ""
        # Characters that are surely said: what may be the beginning of a stop text is held back.
        self.safe = 0
        self.stopped = False
        self._stops = stops

    def push(self, word: str) -> bool:
        """One token more; true if it completed a stop text, which is then cut off."""
        begun = len(self.text)
        text = self.text + word
        self.tokens += 1
        # A stop text may have begun in an earlier word.
        found = [text.find(stop, max(0, begun - len(stop) + 1)) for stop in self._stops]
        hits = [at for at in found if at >= 0]
        if hits:
            self.text = text[: min(hits)]
            self.stopped = True
            return True
        self.text = text
        self.safe = len(text) - self._held_back(text)
        return False

    def end(self) -> None:
        """Nothing more will come."""
        self.safe = len(self.text)

    def _held_back(self, text: str) -> int:
        ends = (length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
        return max(ends, default=0)
