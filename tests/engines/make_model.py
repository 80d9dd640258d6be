"""A tiny random Qwen2 with a tokenizer of its own, for tests: no model hub is needed, and it answers in milliseconds.

Usage: make_model.py FOLDER
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 4096
CONTEXT = 8192
# ChatML. What the model said is rendered as it was said, so that a next turn's prompt extends the last turn's tokens.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part.get('text', '') }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def words(seed: int) -> list[str]:
    """Pseudo-words, the same on every machine."""
    chance = random.Random(seed)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    return ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(3000)]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on pseudo-words and on this file."""
    chance = random.Random(1)
    known = words(1)
    lines = [" ".join(chance.choices(known, k=12)) for _ in range(4000)]
    lines += Path(__file__).read_text().splitlines()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def main(folder: Path) -> None:
    """Writes model and tokenizer to `folder`."""
    torch.manual_seed(0)
    made = tokenizer()
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
        bos_token_id=made.pad_token_id,
    )
    folder.mkdir(parents=True, exist_ok=True)
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    made.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
