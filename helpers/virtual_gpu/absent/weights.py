"""`from_pretrained` without weights: a model is built from its config, and its parameters have no data."""

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import torch

from ..hollow import is_small, make_hollow
from ..patches import Patches
from ..waits import Waits
from ..without_gpu import WithoutGpu
from . import processors
from .models import AbsentError, known_config


class NoWeights(dict):
    """Stands for the weights of a checkpoint that is not here: loading them changes nothing."""


def install(patches: Patches, waits: Waits) -> None:
    """Teach transformers, timm, segmentation_models_pytorch and torchvision as soon as they are imported."""
    finder = WithoutGpu("bitsandbytes")
    sys.meta_path.insert(0, finder)
    patches.later(finder.forget)
    patches.after_import("transformers.configuration_utils", lambda p, module: _configs(p, module, waits))
    patches.after_import("transformers.modeling_utils", lambda p, module: _models(p, module, waits))
    patches.after_import("transformers.generation.configuration_utils", _generation)
    processors.install(patches, waits)
    patches.after_import("timm.models._builder", lambda p, module: _timm(p, module, waits))
    patches.after_import("segmentation_models_pytorch.encoders", lambda p, module: _encoders(p, module, waits))
    base_load, base_url = torch.nn.Module.load_state_dict, torch.hub.load_state_dict_from_url

    def load_state_dict(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, NoWeights):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return base_load(self, state_dict, *args, **kwargs)

    def from_url(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return base_url(url, *args, **kwargs)
        except OSError:
            waits.leave_out("pretrained weights", f"{url.rsplit('/', 1)[-1]}: built without its weights")
            return NoWeights()

    _hub(patches, waits)
    patches.put(torch.nn.Module, "load_state_dict", load_state_dict)
    patches.put(torch.hub, "load_state_dict_from_url", from_url)
    patches.after_import(
        "torchvision.models._api", lambda p, module: p.put(module, "load_state_dict_from_url", from_url)
    )


def _hub(patches: Patches, waits: Waits) -> None:
    """Let `torch.hub` know no models of a repository that it cannot reach."""
    base_list, base_load = torch.hub.list, torch.hub.load

    def listed(github: str, *args: Any, **kwargs: Any) -> list[str]:
        try:
            return base_list(github, *args, **kwargs)
        except OSError:
            waits.leave_out("torch.hub", f"{github}: cannot be reached, and has no models here")
            return []

    def load(repo_or_dir: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return base_load(repo_or_dir, *args, **kwargs)
        except OSError as error:
            raise AbsentError(
                f"torch.hub cannot reach {repo_or_dir}: clone it, and pass its folder with source='local'."
            ) from error

    patches.put_all(torch.hub, {"list": listed, "load": load})


def _configs(patches: Patches, module: Any, waits: Waits) -> None:
    base = module.PreTrainedConfig.__dict__["get_config_dict"].__func__

    def get_config_dict(cls: type, name: Any, **kwargs: Any) -> Any:
        try:
            return base(cls, name, **kwargs)
        except OSError as error:
            found = known_config(str(name), kwargs.get("subfolder"))
            if found is None:
                raise AbsentError(
                    f"{name} is not on this machine, and its shape is not known: pass a folder with its config.json."
                ) from error
            waits.leave_out("model config", f"{name}: the known shape of this name")
            _forget_hub_options(kwargs)
            return dict(found), kwargs

    patches.put(module.PreTrainedConfig, "get_config_dict", classmethod(get_config_dict))


def _forget_hub_options(kwargs: dict[str, Any]) -> None:
    for option in (
        *("cache_dir", "force_download", "proxies", "token", "local_files_only", "revision", "trust_remote_code"),
        *("subfolder", "_from_pipeline", "_from_auto", "_commit_hash", "gguf_file"),
    ):
        kwargs.pop(option, None)


def _models(patches: Patches, module: Any, waits: Waits) -> None:
    """Let every parameter be a missing one, which transformers makes itself."""

    def no_files(pretrained_model_name_or_path: Any = None, **_: Any) -> tuple[None, None]:
        waits.leave_out("pretrained weights", f"{_last(pretrained_model_name_or_path)}: built without its weights")
        return None, None

    def load(model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, expected_keys: Any = None) -> Any:
        if state_dict is not None:
            return base_load(model, state_dict, checkpoint_files, load_config, expected_keys)
        names = set(model.state_dict())
        missing = names & set(model.all_tied_weights_keys)
        if load_config.hf_quantizer is not None:  # transformers quantizes what it loads
            whole = {name: _hollow(model.get_parameter_or_buffer(name), "cpu") for name in sorted(names - missing)}
            return base_load(model, whole, None, load_config, expected_keys)
        _fill(model, names - missing, load_config.device_map, module)
        return _nothing_else(module.LoadStateDictInfo, missing), None

    base_load = module.PreTrainedModel._load_pretrained_model
    patches.put(module, "_get_resolved_checkpoint_files", no_files)
    patches.put(module, "log_state_dict_report", lambda *_, **__: None)
    patches.put(module.PreTrainedModel, "_load_pretrained_model", staticmethod(load))
    patches.put(module.PreTrainedModel, "save_pretrained", _saves_nothing(waits))


def _saves_nothing(waits: Waits) -> Any:
    def save_pretrained(self: Any, save_directory: Any, *_: Any, **__: Any) -> None:
        waits.leave_out("save_pretrained", "nothing is written")
        Path(save_directory).mkdir(parents=True, exist_ok=True)  # programs put files of their own beside the weights

    return save_pretrained


def _fill(model: Any, names: set[str], device_map: Any, module: Any) -> None:
    """Give parameters and buffers that are on the meta device memory where the checkpoint's would lie."""
    devices = dict.fromkeys(names, "cpu")
    if device_map is not None:
        devices |= module.expand_device_map(device_map, list(names))
        module.caching_allocator_warmup(model, {name: devices[name] for name in names}, None)
    for name in sorted(names):
        device = "cpu" if devices[name] == "disk" else devices[name]
        module._load_parameter_into_model(model, name, _hollow(model.get_parameter_or_buffer(name), device))


def _hollow(like: torch.Tensor, device: Any) -> torch.Tensor:
    """Return a tensor of that shape on a device: without data, or zeros if it is small."""
    if is_small(like.numel(), like.dtype):
        return torch.zeros(like.shape, dtype=like.dtype, device=device)
    return make_hollow(torch.empty(like.shape, dtype=like.dtype, device=device))


def _nothing_else(info: Any, missing: set[str]) -> Any:
    """Return transformers' record of a loading in which keys are missing, and nothing else is amiss."""
    fields = {name: set() for name in info.__annotations__}
    return info(**fields | {"missing_keys": missing, "error_msgs": [], "conversion_errors": {}})


def _generation(patches: Patches, module: Any) -> None:
    base = module.GenerationConfig.__dict__["from_pretrained"].__func__

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(cls, *args, **kwargs)
        except OSError:
            made = cls()
            name = _last(args[0]) if args else ""
            if "whisper" in name:
                made.is_multilingual = not name.endswith(".en")
            return made

    patches.put(module.GenerationConfig, "from_pretrained", classmethod(from_pretrained))


def _last(name: Any) -> str:
    return Path(str(name)).name


def _timm(patches: Patches, module: Any, waits: Waits) -> None:
    def load_pretrained(model: Any, *_: Any, **__: Any) -> None:
        waits.leave_out("pretrained weights", f"{type(model).__name__}: built without its weights")

    patches.put(module, "load_pretrained", load_pretrained)


def _encoders(patches: Patches, module: Any, waits: Waits) -> None:
    base = module.get_encoder

    @functools.wraps(base)
    def get_encoder(name: str, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(base).bind(name, *args, **kwargs)
        if given.arguments.get("weights") is not None:
            waits.leave_out("pretrained weights", f"{name}: built without its weights")
            given.arguments["weights"] = None
        return base(*given.args, **given.kwargs)

    patches.put(module, "get_encoder", get_encoder)
