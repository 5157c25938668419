"""SmolLM2-135M for the functions that learners write for a small vision transformer: blocks, and logits by class."""

from typing import Any

import torch
from torch import Tensor, nn

from ...planner.catalog.hub import hub_models


class _Block(nn.Module):
    """A layer that is called with its input alone, as `checkpoint` may call it again."""

    def __init__(self, layer: nn.Module, rotary: nn.Module) -> None:
        super().__init__()
        self.layer, self.rotary = layer, rotary

    def forward(self, x: Tensor) -> Tensor:  # (batch, tokens, width)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


class SmolLM2(nn.Module):
    """The language model of huggingface.co/HuggingFaceTB/SmolLM2-135M, built from its config with random weights.

    Attributes:
        vocabulary: how many tokens it knows.
        blocks: its 30 blocks, each called with its input alone.
    """

    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM  # takes seconds

        super().__init__()
        config = LlamaConfig(**hub_models()["smollm2-135m"].config)
        self.vocabulary = config.vocab_size
        self.llama: Any = LlamaForCausalLM(config)
        inner = self.llama.model
        self.blocks = nn.ModuleList(_Block(layer, inner.rotary_emb) for layer in inner.layers)

    def forward(self, ids: Tensor) -> Tensor:  # (batch, tokens) -> (batch, vocabulary, tokens)
        x = self.llama.model.embed_tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.llama.lm_head(self.llama.model.norm(x)).transpose(1, 2)
