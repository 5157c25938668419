"""What prepares images and sound for a model: with the settings that transformers has for the type of model."""

import functools
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
            _auto(p, getattr(module, owner), getattr(module, mapping), waits)

        patches.after_import(name, change)
    for name, mixin in _OWN.items():

        def change_own(p: Patches, module: Any, mixin: str = mixin) -> None:
            _own(p, getattr(module, mixin), waits)

        patches.after_import(name, change_own)


def _own(patches: Patches, owner: Any, waits: Waits) -> None:
    """Teach the classes that a program names itself, such as `Wav2Vec2FeatureExtractor`."""
    base = owner.__dict__["from_pretrained"].__func__

    @functools.wraps(base)
    def from_pretrained(cls: type, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(cls, name, *args, **kwargs)
        except OSError:
            waits.leave_out("processor", f"{name}: {cls.__name__} with its usual settings")
            return cls()

    patches.put(owner, "from_pretrained", classmethod(from_pretrained))


def _auto(patches: Patches, owner: Any, mapping: Any, waits: Waits) -> None:
    base = owner.__dict__["from_pretrained"].__func__

    @functools.wraps(base)
    def from_pretrained(cls: type, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(cls, name, *args, **kwargs)
        except OSError:
            made = _class_for(name, mapping)
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
