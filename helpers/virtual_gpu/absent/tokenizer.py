"""A tokenizer for a model whose own is not on this machine.

English text takes about as many tokens as with the model's own, and all ids are in its vocabulary.
"""

import functools
import json
from typing import Any

from .. import stand_ins
from ..patches import Patches
from ..waits import Waits
from .models import AbsentError
from .named import single_tokens

_MADE_UP = "_made_up"  # attribute of stand-ins
_MERGED = 8000  # tokens that are made from text; the rest of the vocabulary has names and is never used
_SPECIAL: dict[str, dict[str, str]] = {  # by model type; a language model of the first generations has no padding
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    "gpt_neo": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    "gpt_neox": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    "llama": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "t5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
}
_OTHERS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_BERT = {
    **{"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
    **{"mask_token": "[MASK]", "unk_token": "[UNK]"},
}
_READERS = ("bert", "distilbert", "roberta")  # cut at 512 tokens
_SPECIAL |= dict.fromkeys(
    (
        *(*_READERS, "albert", "electra", "xlm-roberta", "mpnet", "deberta", "deberta-v2", "longformer", "xlnet"),
        "modernbert",
    ),
    _BERT,
)
_CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def install(patches: Patches, waits: Waits) -> None:
    """Teach transformers as soon as it is imported."""
    patches.after_import("transformers.tokenization_utils_base", lambda p, module: _bases(p, module, waits))
    patches.after_import(
        "transformers.models.auto.tokenization_auto", lambda p, module: _auto(p, module.AutoTokenizer, waits)
    )
    patches.after_import(
        "transformers.models.auto.processing_auto", lambda p, module: _auto(p, module.AutoProcessor, waits)
    )


def _bases(patches: Patches, module: Any, waits: Waits) -> None:
    _auto(patches, module.PreTrainedTokenizerBase, waits)
    base = module.PreTrainedTokenizerBase.save_pretrained

    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Write a tokenizer that the program has made before it trains: it reads it again. Write no other."""
        return () if hasattr(self, _MADE_UP) or stand_ins.steps else base(self, *args, **kwargs)

    patches.put(module.PreTrainedTokenizerBase, "save_pretrained", save_pretrained)


def _auto(patches: Patches, owner: Any, waits: Waits) -> None:
    base = owner.__dict__["from_pretrained"].__func__

    @functools.wraps(base)
    def from_pretrained(cls: type, pretrained_model_name_or_path: Any, *inputs: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path  # programs pass it by this keyword, too
        failed: Exception | None = None
        try:
            found = base(cls, name, *inputs, **kwargs)
            if not _is_empty(found):
                return found
        except AbsentError:
            raise
        except Exception as error:
            failed = error
        made = _stand_in(name, kwargs)
        if made is None:
            if failed is not None:
                raise failed
            return found
        waits.leave_out("tokenizer", f"{name}: one with the model's vocabulary")
        return made

    patches.put(owner, "from_pretrained", classmethod(from_pretrained))


def _is_empty(found: Any) -> bool:
    """Say whether a tokenizer has only special tokens: transformers makes such a one where the files are not there."""
    tokenizer = getattr(found, "tokenizer", found)
    try:
        return len(tokenizer) <= 3 * len(tokenizer.all_special_tokens)
    except (TypeError, AttributeError, NotImplementedError):
        return False


def _stand_in(name: Any, kwargs: dict[str, Any]) -> Any:
    """Return a tokenizer for the model called `name`; None where there is no config of it, or it reads no text."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, subfolder=kwargs.get("subfolder") or "").get_text_config()
    except (OSError, ValueError, KeyError):
        return None
    size = getattr(config, "vocab_size", 0)
    if not size:
        return None
    kind = "llama3" if config.model_type == "llama" and size > 100_000 else config.model_type
    special = {**_SPECIAL.get(kind, _OTHERS)}
    longest = kwargs.get("model_max_length") or getattr(config, "max_position_embeddings", None) or 0
    longest = longest if longest > 0 else 10**30  # XLNet says -1
    longest = 512 if kind in (*_READERS, "mpnet", "t5") else longest
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=trained(size, tuple(dict.fromkeys(special.values()))),
        model_max_length=longest,
        padding_side=kwargs.get("padding_side", "right"),
        **special,
    )
    made.add_tokens([word for word in single_tokens() if word in made.get_vocab()])  # which it holds already, unused
    made.chat_template = _CHAT
    made.name_or_path = str(name)
    setattr(made, _MADE_UP, True)
    if kind == "whisper":
        made.set_prefix_tokens = _ignore
    return made


def _ignore(*_: Any, **__: Any) -> None:
    """Stand for Whisper's choice of a language: each has its own token, and all have as many."""


@functools.cache
def trained(size: int, special: tuple[str, ...]) -> Any:
    """Return a byte-level BPE of `size` tokens, `special` ones among them; it has learned from Python's manual."""
    from pydoc_data import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(_MERGED, size),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.topics.values(), trainer)
    written = json.loads(tokenizer.to_str())
    vocabulary = written["model"]["vocab"]
    words = iter(word for word in single_tokens() if word not in vocabulary)
    for number in range(len(vocabulary), size):
        vocabulary[next(words, f"<unused {number}>")] = number
    written["post_processor"] = _around(special, vocabulary)
    return Tokenizer.from_str(json.dumps(written))


def _around(special: tuple[str, ...], vocabulary: dict[str, int]) -> Any:
    """Return what a model wants before and after a text: BERT a class and a separator, Llama a beginning."""
    if "[CLS]" in special:
        names, one = ("[CLS]", "[SEP]"), ["[CLS]", "A", "[SEP]"]
    elif "<s>" in special:
        names, one = ("<s>",), ["<s>", "A"]
    else:
        return None

    def piece(name: str, kind: int = 0) -> dict[str, Any]:
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": kind}}

    return {
        "type": "TemplateProcessing",
        "single": [piece(name) for name in one],
        "pair": [*(piece(name) for name in one), piece("B", 1), *(piece(name, 1) for name in one[2:])],
        "special_tokens": {name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in names},
    }
