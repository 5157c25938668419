"""Which of the known forms a file has, and what it says."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config import RecipeError
from ..exports.heading import headed
from . import hugging_face, nemo, torchtitan
from .automodel import is_automodel, read_automodel
from .litgpt import is_litgpt, read_litgpt
from .llm_foundry import is_llm_foundry, read_llm_foundry
from .megatron import row_of
from .ms_swift import read_megatron_swift, read_swift, trainer_of
from .nanotron import is_nanotron, read_nanotron
from .references import resolved
from .said import Imported
from .scripts import arguments_of, gpus_of
from .torchtune import is_torchtune, read_torchtune

LARGEST = 2**20  # bytes of a configuration


def read_file(path: str) -> Imported:
    """Return the run that a file describes.

    Raises:
        RecipeError: it cannot be read, is none of the known forms, or contradicts itself.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST:
            raise RecipeError(f"{path} has more than {LARGEST // 2**20} MiB; a configuration is smaller.")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not a text file.") from None
    try:
        return _read(text, file.suffix.lower(), file.parent)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None


def _read(text: str, suffix: str, folder: Path) -> Imported:
    if suffix == ".toml":
        return torchtitan.read_toml(_parsed(text, tomllib.loads, "TOML"))
    if suffix == ".json":
        return _by_keys(_parsed(text, json.loads, "JSON"), folder)
    if suffix in (".yaml", ".yml"):
        given = resolved(_parsed(text, _load_yaml, "YAML"))
        return read_torchtune(given, text) if is_torchtune(given) else _by_keys(given, folder)
    if suffix == ".py":
        return torchtitan.read_module(text, headed(text)[1])
    overrides = dict(re.findall(r"^\s*([\w.]+)=(\S+)\s*$", text, re.MULTILINE))
    if "model.num_layers" in overrides:
        return nemo.read_nemo(_nested(overrides), "Megatron Bridge's overrides", *headed(text))
    arguments = arguments_of(text)
    trainer = trainer_of(text)
    if trainer:
        return read_megatron_swift(text) if trainer == "megatron" else read_swift(text, folder)
    if {"--num-layers", "--encoder-num-layers"} & set(arguments):
        form = "a launch script of Megatron-LM" if suffix in (".sh", ".sbatch", ".slurm") else "Megatron-LM's arguments"
        gpus, gpu = headed(text)
        return read_arguments(arguments, gpus_of(text) or gpus, form, gpu)
    if "--per_device_train_batch_size" in arguments:
        gpus = gpus_of(text)
        given = {name.lstrip("-"): value for name, value in arguments.items()} | ({"world_size": gpus} if gpus else {})
        return hugging_face.read_training_arguments(given, _SCRIPT, folder)
    raise RecipeError(f"This file is in none of the formats that --from reads: {FORMS}.")


_SCRIPT = "a launch script of TrainingArguments"
FORMS = (
    "Megatron-LM's arguments, its tests' YAML or a script that names --num-layers, ms-swift's scripts, NeMo's YAML, "
    "NeMo Automodel's, Megatron Bridge's overrides, torchtitan's TOML, KempnerForge's, torchtune's YAML, "
    "LLM Foundry's, LitGPT's, Nanotron's, Axolotl's, LLaMA-Factory's, DeepSpeed's JSON, TrainingArguments, "
    "Accelerate's YAML"
)


def _parsed(text: str, parse: Callable[[str], Any], name: str) -> dict[str, Any]:
    try:
        value = parse(text)
    except Exception as error:  # each parser has errors of its own
        raise RecipeError(f"This is not valid {name}: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(value, dict) or not value:
        raise RecipeError(f"This {name} file has no names with values.")
    return {str(key): each for key, each in value.items()}


def _load_yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def _by_keys(given: dict[str, Any], folder: Path) -> Imported:
    """Return the run of a file of names and values, whose form its names tell."""
    if "MODEL_ARGS" in given:
        return _functional_test(given["MODEL_ARGS"])
    if {"NUM_TIMED_ITERS", "BATCH_SIZES"} <= set(given):
        raise RecipeError("NUM_TIMED_ITERS: this file measures how fast a model generates, and trains nothing.")
    if {"zero_optimization", "train_micro_batch_size_per_gpu"} & set(given):
        return hugging_face.read_deepspeed(given)
    if "base_model" in given:
        return hugging_face.read_axolotl(given, folder)
    if "per_device_train_batch_size" in given or _is_trl(given):
        return hugging_face.read_training_arguments(given, folder=folder)
    if {"distributed_type", "compute_environment"} & set(given):
        return hugging_face.read_accelerate(given)
    if is_automodel(given):
        return read_automodel(given)
    if is_llm_foundry(given):
        return read_llm_foundry(given)
    if isinstance(given.get("parameters"), dict) and is_llm_foundry(given["parameters"]):  # as MosaicML's mcli has it
        return read_llm_foundry(given["parameters"])
    if is_litgpt(given):
        return read_litgpt(given)
    if is_nanotron(given):
        return read_nanotron(given)
    names = {str(name).lstrip("-").replace("_", "-") for name in given}
    if {"num-layers", "hidden-size"} <= names:
        return read_arguments(given, 0, "Megatron-LM's arguments")
    model = given.get("model")
    sized = isinstance(model, Mapping) and "num_layers" in model
    if sized or ({"training", "trainer", "exp_manager"} & set(given) and {"model", "training"} & set(given)):
        return nemo.read_nemo(given, "NeMo's YAML")
    raise RecipeError(f"This file is in none of the formats that --from reads: {FORMS}.")


def _is_trl(given: Mapping[str, Any]) -> bool:
    """Return whether names are those of TRL's command line, which may all have defaults but for model and data."""
    return "model_name_or_path" in given and bool({"dataset_name", "datasets"} & {*given}) and "model" not in given


def read_arguments(given: Mapping[str, Any], gpus: int, form: str, gpu: str = "") -> Imported:
    """Return the run of Megatron-LM's arguments; where nobody says, as few nodes of eight GPUs as its ranks need."""
    ranks = _least_ranks(given)
    row, unknown = row_of(given, gpus or -(-ranks // 8) * 8, gpu)
    return Imported(form, row, None, unknown, {} if gpus else {"gpus": row["gpus"]})


def _functional_test(arguments: Any) -> Imported:
    """Return the run of a functional test of Megatron-LM.

    Raises:
        RecipeError: it has no arguments of a model.
    """
    if not isinstance(arguments, Mapping):
        raise RecipeError("MODEL_ARGS has no arguments: this test trains nothing.")
    if not any(str(name).startswith("-") for name in arguments):
        raise RecipeError("MODEL_ARGS overrides a recipe of NeMo that this file does not name: its sizes are unknown.")
    return read_arguments(arguments, 0, "a functional test of Megatron-LM")


def _least_ranks(given: Mapping[str, Any]) -> int:
    """Return the fewest GPUs on which these arguments run: those of a stage are split once more among experts."""

    def size(name: str, default: int = 1) -> int:
        said = given.get(f"--{name}-parallel-size", default)
        return max(1, int(said)) if str(said).isdecimal() else default

    tensor = size("tensor-model")
    experts = size("expert-model") * size("expert-tensor", tensor) if "--num-experts" in given else 1
    return size("pipeline-model") * math.lcm(tensor * size("context"), experts)


def _nested(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return `a.b=c` as tables within tables."""
    nested: dict[str, Any] = {}
    for name, value in overrides.items():
        table, _, last = name.partition(".")
        if last:
            nested.setdefault(table, {})[last] = value
        else:
            nested[name] = value
    return nested
