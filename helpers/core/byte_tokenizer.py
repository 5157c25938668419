"""A tokenizer for models that read bytes, with the interface of those that come with pretrained models."""

from typing import Any

# Each turn between two marks, after the speaker's name: ChatML, the form of SmolLM2's own template.
_TEMPLATE = (
    "{% for message in messages %}{{ start + message.role + '\n' + message.content + end + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ start + 'assistant\n' }}{% endif %}"
)
_START, _END = "\x01", "\x02"  # bytes that no text uses


def byte_tokenizer() -> Any:
    """Return a tokenizer of Transformers whose token ids are the 256 bytes, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # these stand for themselves in byte-level BPE
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = next(name for name, byte in vocabulary.items() if byte == ord(_END))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrapped.eos_token = wrapped.pad_token = end
    wrapped.chat_template = f"{{% set start = '{_START}' %}}{{% set end = '{_END}' %}}" + _TEMPLATE
    return wrapped
