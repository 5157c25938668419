"""Models of diffusers that are not on this machine: built from the shapes that are known by name."""

import functools
from typing import Any

from ..patches import Patches
from ..waits import Waits
from .models import AbsentError

_VAE = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "latent_channels": 4,
    "sample_size": 512,
}
_UNET_1 = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
_UNET_2 = {
    "sample_size": 64,
    "cross_attention_dim": 1024,
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
_UNET_XL = {
    "sample_size": 128,
    "cross_attention_dim": 2048,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
_FAMILIES = {  # words in the name of a model -> the UNet's shape
    ("stable-diffusion-xl", "sdxl"): _UNET_XL,
    ("stable-diffusion-2",): _UNET_2,
    ("stable-diffusion", "sd-v1", "sd-turbo"): _UNET_1,
}


def install(patches: Patches, waits: Waits) -> None:
    """Teach diffusers as soon as it is imported."""
    patches.after_import(
        "diffusers.models.modeling_utils", lambda p, module: _built(p, module.ModelMixin, waits, "weights")
    )
    patches.after_import(
        "diffusers.schedulers.scheduling_utils", lambda p, module: _built(p, module.SchedulerMixin, waits, "schedule")
    )


def _built(patches: Patches, owner: Any, waits: Waits, what: str) -> None:
    base = owner.__dict__["from_pretrained"].__func__

    @functools.wraps(base)
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any = None, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path  # programs pass it by this keyword, too
        try:
            return base(cls, name, **kwargs)
        except OSError as error:
            config = _config(cls, str(name), kwargs.get("subfolder")) if what == "weights" else {}
            if config is None:
                raise AbsentError(
                    f"{name} is not on this machine, and its shape is not known: pass a folder with its config.json."
                ) from error
        waits.leave_out("pretrained weights" if config else what, f"{name}: {cls.__name__}, built from its known shape")
        made = cls.from_config(config)
        dtype = kwargs.get("torch_dtype")
        return made if dtype is None else made.to(dtype)

    patches.put(owner, "from_pretrained", classmethod(from_pretrained))


def _config(cls: Any, name: str, subfolder: str | None) -> dict[str, Any] | None:
    """Return the shape of a model: the one in its folder, or the one that is known by its name."""
    try:
        return cls.load_config(name, subfolder=subfolder)
    except OSError:
        if cls.__name__ == "AutoencoderKL":
            return _VAE
        if cls.__name__ == "UNet2DConditionModel":
            return next((shape for words, shape in _FAMILIES.items() if any(w in name.lower() for w in words)), None)
    return None
