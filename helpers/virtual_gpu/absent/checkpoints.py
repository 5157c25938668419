"""Checkpoint folders of litgpt, and the tokenizer that nanochat trains: both go on without them."""

import functools
from pathlib import Path
from typing import Any

from ..patches import Patches
from ..waits import Waits
from .models import AbsentError
from .token_files import made_up_ranks
from .tokenizer import trained

_NANOCHAT_TOKENS = 2**15  # the vocabulary that its script trains unless told otherwise
_UNKNOWN = "{} is not on this machine, and litgpt has no model {}."


def install(patches: Patches, waits: Waits) -> None:
    """Teach litgpt and nanochat as soon as they are imported."""
    patches.after_import("litgpt.utils", lambda p, module: _litgpt_folders(p, module, waits))
    patches.after_import("litgpt.config", lambda p, module: _litgpt_configs(p, module.Config, waits))
    patches.after_import("litgpt.tokenizer", lambda p, module: _litgpt_tokenizer(p, module.Tokenizer, waits))
    patches.after_import("nanochat.tokenizer", lambda p, module: _nanochat(p, module, waits))


def _litgpt_folders(patches: Patches, module: Any, waits: Waits) -> None:
    """Let a missing folder of weights pass, and its weights be left out."""
    check, load = module.check_valid_checkpoint_dir, module.load_checkpoint

    @functools.wraps(check)
    def check_valid_checkpoint_dir(checkpoint_dir: Path, *args: Any, **kwargs: Any) -> None:
        if Path(checkpoint_dir).exists():
            check(checkpoint_dir, *args, **kwargs)

    @functools.wraps(load)
    def load_checkpoint(fabric: Any, model: Any, checkpoint_path: Path, *args: Any, **kwargs: Any) -> None:
        if Path(checkpoint_path).exists():
            load(fabric, model, checkpoint_path, *args, **kwargs)
            return
        waits.leave_out("pretrained weights", f"{Path(checkpoint_path).parent.name}: built without its weights")

    patches.put_all(
        module, {"check_valid_checkpoint_dir": check_valid_checkpoint_dir, "load_checkpoint": load_checkpoint}
    )


def _litgpt_configs(patches: Patches, owner: Any, waits: Waits) -> None:
    base = owner.__dict__["from_file"].__func__

    @functools.wraps(base)
    def from_file(cls: Any, path: Any, **kwargs: Any) -> Any:
        try:
            return base(cls, path, **kwargs)
        except FileNotFoundError as error:
            name = Path(path).parent.name
            try:
                made = cls.from_name(name, **kwargs)
            except ValueError:
                raise AbsentError(_UNKNOWN.format(Path(path).parent, name)) from error
        waits.leave_out("model config", f"{name}: litgpt's own")
        return made

    patches.put(owner, "from_file", classmethod(from_file))


def _litgpt_tokenizer(patches: Patches, owner: Any, waits: Waits) -> None:
    base = owner.__init__

    @functools.wraps(base)
    def __init__(self: Any, checkpoint_dir: Any) -> None:
        if Path(checkpoint_dir).exists():
            base(self, checkpoint_dir)
            return
        name = Path(checkpoint_dir).name
        from litgpt.config import Config

        try:
            size = Config.from_name(name).vocab_size
        except ValueError as error:
            raise AbsentError(_UNKNOWN.format(checkpoint_dir, name)) from error
        waits.leave_out("tokenizer", f"{name}: one with the model's vocabulary")
        self.model_name, self.backend, self.use_bos, self.apply_decoding_fix = name, "huggingface", False, None
        self.processor = trained(size, ("<|endoftext|>",))
        self.bos_id = self.eos_id = self.processor.token_to_id("<|endoftext|>")

    patches.put(owner, "__init__", __init__)


def _nanochat(patches: Patches, module: Any, waits: Waits) -> None:
    owner = module.RustBPETokenizer
    base, token_bytes = owner.__dict__["from_directory"].__func__, module.get_token_bytes

    @functools.wraps(base)
    def from_directory(cls: Any, tokenizer_dir: Any) -> Any:
        try:
            return base(cls, tokenizer_dir)
        except FileNotFoundError:
            waits.leave_out("tokenizer", f"tokenizer.pkl: one with {_NANOCHAT_TOKENS:,} tokens")
        ranks = made_up_ranks(_NANOCHAT_TOKENS - len(module.SPECIAL_TOKENS))
        special = {name: len(ranks) + place for place, name in enumerate(module.SPECIAL_TOKENS)}
        made = module.tiktoken.Encoding(
            name="rustbpe", pat_str=module.SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens=special
        )
        return cls(made, "<|bos|>")

    @functools.wraps(token_bytes)
    def get_token_bytes(device: Any = "cpu") -> Any:
        """Return the length of each token in bytes, 0 for special ones; (vocabulary,)."""
        import torch

        try:
            return token_bytes(device)
        except (AssertionError, FileNotFoundError):
            ranks = made_up_ranks(_NANOCHAT_TOKENS - len(module.SPECIAL_TOKENS))
            lengths = [*map(len, ranks), *(0 for _ in module.SPECIAL_TOKENS)]
            return torch.tensor(lengths, dtype=torch.int32, device=device)

    patches.put(owner, "from_directory", classmethod(from_directory))
    patches.put(module, "get_token_bytes", get_token_bytes)
