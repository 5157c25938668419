"""The sizes of a language model: all that a layout needs to know of it."""

from dataclasses import dataclass
from typing import Any

from ..config import RecipeError


@dataclass(frozen=True)
class Arch:
    """A language model by its sizes: a decoder, unless it is `masked` or has `encoder_layers`.

    Attributes:
        layers, hidden, vocab: how many blocks, and the width of the residual stream and of the vocabulary.
        heads, kv_heads, head_dim: of attention; keys and values have `kv_heads` heads, each for several queries.
        ffn: width inside a dense block's multilayer perceptron.
        gated: whether that has a gate beside its first product (SwiGLU): three matrices instead of two.
        tied: whether the head is the embedding.
        bias: whether the linear layers add one.
        layer_norm: LayerNorm instead of RMSNorm.
        positions: rows of a learned table of positions; 0 rotates queries and keys instead.
        qk_norm: whether queries and keys are normed, head by head.
        experts, experts_per_token: of a mixture; 0 for a dense model.
        shared_experts: experts that every token visits; half a one is half as wide as the others.
        moe_ffn: width inside one expert.
        dense_layers: the first blocks, which have no experts.
        q_lora, kv_lora, rope_dim, value_dim: of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks of
            the compressed queries, keys and values, the rotated part of a head, and a value's size; 0 without it.
        masked: whether it is an encoder that fills in masked words, as BERT: its attention looks both ways, and between
            the last norm and the logits, which have a bias, come a dense layer and a norm more.
        encoder_layers: blocks of an encoder-decoder, as T5, that read its input both ways; its `layers`, the decoder's,
            also attend to what these return. Both read one embedding; the logits have a bias where they share it.
        further: blocks after the last one that predict one token further each (DeepSeek-V3, arXiv 2412.19437): of the
            embedding of the next token and the stream, by a layer that joins both, with the same logits and a loss.
        pairs: whether a masked model also classifies pairs of sentences: it has a table of token types, and a head on
            the first token.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    bias: bool = False
    layer_norm: bool = False
    positions: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: float = 0
    moe_ffn: int = 0
    dense_layers: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    qk_norm: bool = False
    masked: bool = False
    pairs: bool = False
    encoder_layers: int = 0
    further: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, name) < 1:
                raise RecipeError(f"arch: {name} is {getattr(self, name)}; it must be at least 1.")
        if self.ffn < 1 and not (self.experts and self.dense_layers == 0):
            raise RecipeError("arch: ffn is missing; give the width inside the dense blocks.")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise RecipeError(f"arch: a token cannot use {self.experts_per_token} of {self.experts} experts.")
        if self.heads % self.kv_heads:
            raise RecipeError(f"arch: {self.heads} heads cannot share {self.kv_heads} heads of keys and values.")

    def is_moe(self, layer: int) -> bool:
        """Return whether block `layer` has experts."""
        return self.experts > 0 and layer >= self.dense_layers

    @property
    def first_blocks(self) -> int:
        """Blocks that are unlike those after them: without experts, or of an encoder."""
        return self.dense_layers if self.experts else self.encoder_layers

    def is_causal(self, layer: int) -> bool:
        """Return whether tokens attend to no later ones in block `layer` of all, those of an encoder first."""
        return not (self.masked or (self.encoder_layers and layer < self.encoder_layers))

    def is_second(self, layer: int) -> bool:
        """Return whether block `layer` of all, those of an encoder before the others, is unlike the first."""
        return self.is_moe(layer) or 0 < self.encoder_layers <= layer

    @property
    def attention_parameters(self) -> int:
        """Parameters of one block's attention."""
        q, kv, value = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.heads * self.values
        if not self.kv_lora:
            return self.hidden * (q + 2 * kv) + value * self.hidden
        unrotated = self.head_dim - self.rope_dim
        queries = self.hidden * self.q_lora + self.q_lora * q if self.q_lora else self.hidden * q
        down = self.hidden * (self.kv_lora + self.rope_dim)
        return queries + down + self.kv_lora * self.heads * (unrotated + self.values) + value * self.hidden

    @property
    def values(self) -> int:
        """Numbers in a head of the values."""
        return self.value_dim or self.head_dim

    @property
    def shared_ffn(self) -> int:
        """Width of what every token visits beside its experts."""
        return int(self.shared_experts * self.moe_ffn)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return self.hidden * self.moe_ffn * (3 if self.gated else 2)

    def layer_parameters(self, layer: int, active: bool = False) -> int:
        """Parameters of block `layer`, norms left out; `active`: only those that a token meets."""
        if not self.is_moe(layer):
            return self.attention_parameters + self.hidden * self.ffn * (3 if self.gated else 2)
        experts = (self.experts_per_token if active else self.experts) + self.shared_experts
        return self.attention_parameters + int(experts * self.expert_parameters) + self.hidden * self.experts

    def count(self, active: bool = False) -> int:
        """Return the parameters of the model; `active`: those that a token meets, in products."""
        blocks = sum(self.layer_parameters(layer, active) for layer in range(self.layers))
        if self.encoder_layers:
            blocks += self.encoder_layers * self.layer_parameters(0) + self.layers * self.attention_parameters
        blocks += self.further * (self.layer_parameters(self.layers - 1, active) + 2 * self.hidden**2)
        blocks += self.hidden**2 * (self.masked + (self.pairs and not active))  # before the logits; of a first token
        tables = self.hidden * self.vocab * (1 + self.further if active else 1 if self.tied else 2)
        norms = 2 * self.layers + 1 + 5 * self.further
        norms += self.layers + 2 * self.encoder_layers + 1 if self.encoder_layers else 0
        return blocks + tables + self.hidden * norms * (0 if active else 1)

    def flops_per_token(self, seq: int, target: int = 0) -> float:
        """Return the FLOPs of forward and backward for a token: products, and attention, causal of its half.

        Of an encoder-decoder for a token that it reads; for each `seq` of these it writes `target`, or as many.
        """
        if self.encoder_layers:
            return self._flops_of_pair(seq, target or seq) / seq
        pairs = (1 if self.masked else 0.5) * seq  # that a token attends to
        attention = 6 * (self.layers + self.further) * self.heads * (self.head_dim + self.values) * pairs
        return 6.0 * self.count(active=True) + attention

    def _flops_of_pair(self, read: int, written: int) -> float:
        """Return the FLOPs of forward and backward for a sequence that an encoder reads and one that is written."""
        block, keys = self.layer_parameters(0), 2 * self.hidden * self.kv_heads * self.head_dim
        products = (self.encoder_layers * block + self.layers * keys) * read
        products += (self.layers * (block + self.attention_parameters - keys) + self.hidden * self.vocab) * written
        pairs = self.encoder_layers * read**2 + self.layers * (written / 2 + read) * written
        return 6.0 * (products + self.heads * (self.head_dim + self.values) * pairs)


def arch_of_config(name: str, config: Any) -> Arch:
    """Return the sizes that a Hugging Face config of a causal model states.

    Raises:
        RecipeError: it states too little.
    """

    def get(*names: str, default: Any = None) -> Any:
        return next((value for n in names if (value := getattr(config, n, None)) is not None), default)

    hidden, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    layers, vocab = get("num_hidden_layers", "n_layer"), get("vocab_size")
    if not all((hidden, heads, layers, vocab)):
        raise RecipeError(f"{name}: the config does not give the number of layers, heads and tokens.")
    gpt2 = config.model_type in ("gpt2", "gpt_neox", "opt", "gpt_bigcode")
    latent = get("kv_lora_rank", default=0)
    rope = get("qk_rope_head_dim", default=0) if latent else 0
    head = get("qk_nope_head_dim", default=0) + rope if latent else get("head_dim", default=hidden // heads)
    moe_ffn = get("moe_intermediate_size", "intermediate_size", default=0)
    together = get("shared_expert_intermediate_size", default=0)  # one perceptron, as wide as several experts
    shared = together // moe_ffn if together and together % moe_ffn == 0 else 0
    return Arch(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else get("num_key_value_heads", default=heads),
        head_dim=head,
        ffn=get("n_inner", "intermediate_size", default=4 * hidden),
        vocab=vocab,
        gated=not gpt2,
        tied=bool(get("tie_word_embeddings", default=False)),
        bias=gpt2,
        layer_norm=gpt2,
        positions=get("max_position_embeddings", default=0) if config.model_type in ("gpt2", "opt") else 0,
        experts=(experts := get("n_routed_experts", "num_local_experts", "num_experts", default=0)),
        experts_per_token=get("num_experts_per_tok", "experts_per_token", default=0) if experts else 0,
        shared_experts=get("n_shared_experts", default=shared) if experts else 0,
        moe_ffn=moe_ffn if experts else 0,
        dense_layers=get("first_k_dense_replace", default=0) if experts else 0,
        q_lora=get("q_lora_rank", default=0) if latent else 0,
        kv_lora=latent,
        rope_dim=rope,
        value_dim=get("v_head_dim", default=0) if latent else 0,
    )
