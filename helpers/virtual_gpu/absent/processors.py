"""What prepares images and sound for a model: with the settings that transformers has for the type of model."""

import functools
from collections.abc import Callable
from typing import Any

from ..patches import Patches
from ..waits import Waits

_AUTO = {
    "transformers.models.auto.image_processing_auto": ("AutoImageProcessor", "IMAGE_PROCESSOR_MAPPING"),
    "transformers.models.auto.feature_extraction_auto": ("AutoFeatureExtractor", "FEATURE_EXTRACTOR_MAPPING"),
}

_OWN = {  # what the classes of the models inherit `from_pretrained` from
    "transformers.image_processing_base": "ImageProcessingMixin",
    "transformers.feature_extraction_utils": "FeatureExtractionMixin",
}


def install(patches: Patches, waits: Waits) -> None:
    """Teach transformers as soon as it is imported."""
    for name, (owner, mapping) in _AUTO.items():

        def change(p: Patches, module: Any, owner: str = owner, mapping: str = mapping) -> None:
            kinds = getattr(module, mapping)
            _teach(p, getattr(module, owner), lambda cls, model: _class_for(model, kinds), waits)

        patches.after_import(name, change)
    for name, mixin in _OWN.items():

        def change_own(p: Patches, module: Any, mixin: str = mixin) -> None:
            _teach(p, getattr(module, mixin), lambda cls, model: cls, waits)

        patches.after_import(name, change_own)


def _teach(patches: Patches, owner: Any, class_for: Callable[[type, Any], Any], waits: Waits) -> None:
    """Make what cannot be read as `class_for` says, from the class that the program asks and the model's name."""
    base = owner.__dict__["from_pretrained"].__func__

    @functools.wraps(base)
    def from_pretrained(cls: type, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path  # programs pass it by this keyword, too
        try:
            return base(cls, name, *args, **kwargs)
        except OSError:
            made = class_for(cls, name)
            if made is None:
                raise
        waits.leave_out("processor", f"{name}: {made.__name__} with its usual settings")
        return made()

    patches.put(owner, "from_pretrained", classmethod(from_pretrained))


def _class_for(name: Any, mapping: Any) -> Any:
    """Return the class that prepares data for the model called `name`; None where there is none."""
    from transformers import AutoConfig

    config = type(AutoConfig.from_pretrained(name))
    found = mapping.get(config, None)
    if isinstance(found, dict):  # backend -> class
        found = [found.get(backend) for backend in ("pil", "torchvision", *found)]
    if isinstance(found, (list, tuple)):
        return next((kind for kind in found if kind is not None), None)
    return found
