"""Text to tokens and back, and where replies end."""

from __future__ import annotations

import random

import pytest

from tailroute_torch.serve.said import Said
from tailroute_torch.serve.tokens import Chain, Vocabulary

VOCABULARY = Vocabulary(2048)


def test_white_space_belongs_to_the_word_after_it_and_long_words_are_cut() -> None:
    assert len(VOCABULARY.text("Hello, wonderful  world\n日本語")) == 7
    assert VOCABULARY.text(" w1 w2") == VOCABULARY.text(" w1") + VOCABULARY.text(" w2")


def test_a_reply_sent_back_as_history_becomes_the_tokens_that_were_said() -> None:
    said = random.Random(1).choices(VOCABULARY.sayable, k=500)
    assert VOCABULARY.text("".join(map(VOCABULARY.word, said))) == said


def test_markers_are_no_text() -> None:
    markers = {VOCABULARY.marker(name) for name in ("user", "assistant", "system", "<|end|>")}
    assert len(markers) == 4
    texts = {token for at in range(5000) for token in VOCABULARY.text(f" {at}")}
    assert not markers & texts
    assert max(texts) < VOCABULARY.size


@pytest.mark.parametrize("seed", range(20))
def test_appending_changes_at_most_the_last_token(seed: int) -> None:
    rng = random.Random(seed)
    text, more = ("".join(rng.choices("ab é\n日", k=30)) for _ in range(2))
    short, long = VOCABULARY.text(text), VOCABULARY.text(text + more)
    assert long[: len(short) - 1] == short[:-1]


def test_lone_surrogates_are_text_like_any() -> None:
    assert VOCABULARY.text("\ud800")


def test_a_blocks_name_stands_for_all_before_it_and_for_the_salt() -> None:
    def names(*tokens: int, salt: str | None = None) -> list[bytes]:
        return Chain(2, salt, tokens).names

    assert names(1, 2, 3, 4, 5)[:1] == names(1, 2)
    assert len(names(1, 2, 3, 4, 5)) == 2
    assert names(1, 2, 3, 4)[1] != names(9, 2, 3, 4)[1]
    assert names(1, 2) != names(1, 2, salt="tenant")


@pytest.mark.parametrize("stop", ["bra", "ra c", "abra cad", "c", " ca"])
def test_a_stop_text_may_span_words_and_nothing_of_it_is_said(stop: str) -> None:
    said, safe = Said((stop, "never")), []
    for word in ("a", "bra", " cad", "abra"):
        stopped = said.push(word)
        safe.append(said.text[: said.safe])
        if stopped:
            break
    said.end()
    whole = "abra cadabra"
    assert said.stopped
    assert said.text == whole[: whole.find(stop)]
    assert all(said.text.startswith(part) for part in safe), "what was streamed is taken back"


def test_what_only_looked_like_a_stop_is_said_in_the_end() -> None:
    said = Said((" cat",))
    said.push("the")
    said.push(" ca")
    assert said.text[: said.safe] == "the"
    said.push("r")
    assert said.text[: said.safe] == "the car"
