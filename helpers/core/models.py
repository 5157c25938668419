"""Models that are small enough for a laptop and built like the large ones.

`SmallCNN` has the parts that make the memory of convolutional networks interesting: large activations, few
parameters, BatchNorm. `SmallGPT` has those of a language model: tied embeddings, pre-norm blocks, fused
attention, and logits over a vocabulary. `ViT` is the vision transformer, in any size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """A convolutional classifier for small gray images.

    Args:
        width: channels of the first stage; the second stage has twice as many.
        classes: number of classes.
    """

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *self._stage(1, width),
            nn.MaxPool2d(2),  # (B, W, H, H) -> (B, W, H/2, H/2)
            *self._stage(width, 2 * width),
            nn.AdaptiveAvgPool2d(1),  # (B, 2W, H/2, H/2) -> (B, 2W, 1, 1)
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            # No bias: BatchNorm's own shift would cancel it.
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        return layers

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 1, H, H) to logits (B, classes)."""
        return self.head(self.features(images))


class _Block(nn.Module):
    """Pre-norm transformer block: attention, then an MLP four times as wide, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(C, dim=-1)
        # (B, T, C) -> (B, heads, T, C / heads)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm_2(x))


class SmallGPT(nn.Module):
    """A decoder-only language model; its output layer shares its weight with the token embedding.

    Args:
        vocabulary: number of different tokens.
        context: longest sequence.
        width: size of the hidden state; `heads` must divide it.
    """

    def __init__(
        self, vocabulary: int = 256, context: int = 128, layers: int = 4, width: int = 128, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight  # tied: one tensor, counted once

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        # GPT-2's choice. The default for embeddings (std 1) would start the loss at many times ln(vocabulary).
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids (B, T) to logits (B, T, vocabulary)."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class _EncoderBlock(nn.Module):
    """Pre-norm transformer block with PyTorch's own attention layer, without a causal mask."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm_2(x))


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021): patches of an image as tokens, and one more for the class.

    Args:
        side, patch: pixels a side of the image, and of a patch; `patch` must divide `side`.
        inner: width of the hidden layer of each MLP.
        channels: color channels of the image.
    """

    def __init__(
        self,
        side: int = 16,
        patch: int = 4,
        layers: int = 4,
        width: int = 64,
        heads: int = 4,
        inner: int = 256,
        channels: int = 1,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(_EncoderBlock(width, heads, inner) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, channels, side, side) to logits (B, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, W, S/P, S/P) -> (B, T, W)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
