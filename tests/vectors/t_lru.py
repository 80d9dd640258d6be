"""Writes t_lru.json: turns of conversations, and the blocks that T-LRU evicts for them, in order.

python3 tests/vectors/t_lru.py > tests/vectors/t_lru.json

A cache holds a beginning of each conversation, in blocks. A turn needs its whole conversation; what is missing takes room. Room is
made a block at a time, from the end of a conversation other than the turn's: of the least recently used one that holds more than
L + Q̂ − ξ tokens, else of the least recently used one. L is the length after the conversation's last turn.
"""

import json
import random

BLOCK_TOKENS = 32


def evicted(case):
    """The blocks that go for each turn, as conversation and position."""
    held, length, used = {}, {}, {}
    spare = case["xi_tokens"] - case["next_prompt_tokens"]
    for now, (conversation, blocks) in enumerate(case["turns"]):
        gone = []
        held.pop(conversation, None)
        while blocks + sum(held.values()) > case["capacity_blocks"]:
            over = [one for one in held if held[one] * BLOCK_TOKENS > max(0, length[one] * BLOCK_TOKENS - max(0, spare))]
            victim = min(over or held, key=used.get)
            held[victim] -= 1
            gone.append([victim, held[victim]])
            if held[victim] == 0:
                del held[victim]
        held[conversation], length[conversation], used[conversation] = blocks, blocks, now
        yield gone


def case(seed):
    draw = random.Random(seed)
    names, length, turns = list(range(6)), {}, []
    for _ in range(60):
        at = draw.randrange(6)
        if length.get(names[at], 0) > 11:
            # It ends without a word, and another one begins.
            names[at] = max(names) + 1
        length[names[at]] = length.get(names[at], 0) + draw.randint(1, 3)
        turns.append([names[at], length[names[at]]])
    return {
        "capacity_blocks": draw.randint(16, 28),
        "xi_tokens": BLOCK_TOKENS * draw.choice([0, 2, 4, 6, 9, 20]),
        "next_prompt_tokens": BLOCK_TOKENS * draw.choice([0, 1, 2]),
        "turns": turns,
    }


def main():
    cases = [case(seed) for seed in range(20)]
    for one in cases:
        one["evicted"] = list(evicted(one))
    print(json.dumps({"block_tokens": BLOCK_TOKENS, "cases": cases}, separators=(",", ":")).replace('{"capacity', '\n{"capacity'))


if __name__ == "__main__":
    main()
