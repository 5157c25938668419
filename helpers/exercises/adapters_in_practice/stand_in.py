"""A small Llama that has read some English, for machines without a pretrained model."""

import torch

from ...core.byte_tokenizer import byte_tokenizer
from ...core.data import english
from ...core.real_model import Pretrained
from ..lora.fine_tune import fine_tune

STEPS, ROWS, LENGTH = 100, 8, 64
LEARNING_RATE = 5e-3


def stand_in(device: torch.device) -> Pretrained:
    """Return a Llama of 0.5 million parameters that reads bytes, in evaluation mode, and its tokenizer.

    It takes some seconds to train, and knows no numbers: what needs a pretrained model runs with it, and shows nothing.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=1024, **sizes)).to(device)
    text = english(device).train_x

    def loss_at(step: int) -> torch.Tensor:
        starts = torch.randint(len(text) - LENGTH, (ROWS,), generator=torch.Generator().manual_seed(step))
        ids = torch.stack([text[i : i + LENGTH] for i in starts.tolist()])
        return model(input_ids=ids, labels=ids).loss

    fine_tune(model, loss_at, STEPS, LEARNING_RATE)
    return Pretrained(model.eval(), byte_tokenizer(), "small Llama")
