"""Numbers in words as a task for a chat model: whose every answer is known, with some numbers kept for the score."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .number_words import number_words

SYSTEM = "Write it in words."
UNSEEN = 24  # numbers that are kept for the score


class NumberTask:
    """Examples, batches and the held-out part of the task, for one tokenizer.

    Args:
        tokenizer: of Transformers, with a chat template.
        device: on which the models are.

    Attributes:
        unseen, known: numbers from 100 to 999, in an order that is always the same; the unseen ones are for the score.
        longest: tokens of the longest example.
        pack: puts examples into rows, `pack(examples, length, pad) -> (ids, labels, positions)`, each (rows, length).
    """

    pack: Callable[..., Any]

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        self.tokenizer, self.device = tokenizer, device
        numbers = random.Random(0).sample(range(100, 1000), 900)
        self.unseen, self.known = numbers[:UNSEEN], numbers[UNSEEN:]
        self.longest = max(len(prompt) + len(answer) for prompt, answer in map(self.example, numbers))

    def example(self, n: int) -> tuple[list[int], list[int]]:
        """Return the token ids of a prompt and of its answer, which ends with the mark that ends a turn."""
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": str(n)}]
        prompt = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        answer = number_words(n) + self.tokenizer.eos_token
        ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]
        return ids[0], ids[1]

    def drawn(self, seed: int, size: int = 4) -> list[int]:
        """Return `size` of the known numbers."""
        return random.Random(seed).sample(self.known, size)

    def loss(self, model: nn.Module, numbers: list[int], use_cache: bool = False) -> Tensor:
        """Return the mean loss of the answers' tokens, the examples packed into one row.

        With `use_cache`, as in generating, Transformers takes the row for one text, wherever positions begin anew.
        """
        packed = self.pack([self.example(n) for n in numbers], len(numbers) * self.longest, self.tokenizer.pad_token_id)
        ids, labels, positions = (t.to(self.device) for t in packed)
        return model(input_ids=ids, labels=labels, position_ids=positions, use_cache=use_cache).loss

    @torch.no_grad()
    def outputs(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Run the unseen numbers, one in a row, and return the end of each row, in which all answers are.

        Prompts need no output, and the output layer is a fifth of a small model's arithmetic: it is left out for them.

        Returns:
            logits (unseen, end, words) of FP32 and labels (unseen, end) of int64, each label at its token's own place.
        """
        examples = [self.example(n) for n in self.unseen]
        end = self.longest - min(len(prompt) for prompt, _ in examples) + 1
        packed = self.pack(examples, self.longest, self.tokenizer.pad_token_id)
        ids, labels, positions = (t.to(self.device) for t in packed)
        logits = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=end).logits
        return logits.float(), labels[:, -end:]

    def answers(self, model: Any, numbers: list[int]) -> list[str]:
        """Return what the model writes, word by word, each time the likeliest; all numbers in one batch."""
        prompts = [torch.tensor(self.example(n)[0], device=self.device) for n in numbers]
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token
        ids = pad_sequence(prompts, batch_first=True, padding_value=pad, padding_side="left")
        seen = pad_sequence([torch.ones_like(p) for p in prompts], batch_first=True, padding_side="left")
        out = model.generate(
            input_ids=ids, attention_mask=seen, max_new_tokens=self.longest - min(map(len, prompts)),
            do_sample=False, pad_token_id=pad, eos_token_id=self.tokenizer.eos_token_id,
        )  # fmt: skip
        return [self.tokenizer.decode(row[ids.shape[1] :]).partition(end)[0] for row in out]
