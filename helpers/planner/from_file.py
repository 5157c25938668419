"""python -m helpers plan --from FILE: the run that a file describes, planned as it stands.

Options on the command line count for more than the file. The answer names what of the file was not understood, and the
single changes that help most.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from .catalog.clusters import Cluster, find_cluster
from .changes import (
    Change,
    Outcome,
    best_changes,
    of_config,
    of_layout,
    outcome_of_config,
    outcome_of_layout,
    outcome_of_plan,
    outcome_of_recipe,
)
from .config import RecipeError, TrainingConfig
from .described import Described, cluster_of, described
from .grades import DOES_NOT_FIT, FITS, TIGHT
from .importers import Imported, read_file

_MOST = 4  # names in a message
GPU = "h100"  # where neither the file nor the command names one
_OF_ROW = (  # fields of a row that options of `plan` may overrule
    *("model", "gpu", "gpus", "gpus_per_node", "tensor", "pipeline", "context", "expert", "shard", "replicate", "zero"),
    *("schedule", "virtual_stages", "micro_batch_size", "gradient_accumulation_steps", "seq", "precision"),
    *("checkpointing", "attention", "compile", "sequence_parallel"),
)
_VERDICT = re.compile(rf"^  .*\b(?:{FITS}|{TIGHT}|{DOES_NOT_FIT})\b.*$", re.MULTILINE)
Tell = Callable[[str], None]


class _Planned(NamedTuple):
    """A run that is planned: plain values, words, and a search for single changes that help, which takes longer.

    There is no such search where the words already end with what to change so that the run fits: one list is enough.
    """

    values: dict[str, Any]
    text: str
    changes: Callable[[], list[Change]] | None


def print_from(args: argparse.Namespace, tell: Tell) -> None:
    """Print the answer to `--from FILE`: the plan as soon as it is made, then the changes; as JSON both at the end.

    Raises:
        RecipeError: the file cannot be read, or its run cannot be planned.
    """
    imported = read_file(args.from_file)
    given = {name: value for name, value in vars(args).items() if value is not None}
    plan = _plan_row if imported.row is not None else _plan_options
    planned = plan(imported, given, tell)
    head = [f"{args.from_file}: {imported.form}"]
    unknown = ", ".join(imported.unknown)
    head += [f"  not understood: {unknown}" if unknown else "  everything in it was understood"]
    tell("")
    if not args.json:
        print("\n".join([*head, _less(planned.text, imported.unknown)]), flush=True)
    changes = planned.changes() if planned.changes else []
    tell("")
    if args.json:
        names = {"file": args.from_file, "form": imported.form, "not_understood": imported.unknown}
        listed = {"changes": [change.to_json() for change in changes]}
        print(json.dumps(names | planned.values | listed, indent=2))
        return
    if planned.changes is None:
        return
    found = [f"  {number}. {change}" for number, change in enumerate(changes, 1)]
    print("\n".join(["", "Single changes that help most:", *found] if found else ["", "No single change helps."]))


def _less(text: str, unknown: list[str]) -> str:
    """Return a plan's text; its verdict names the settings that were not understood and so are not counted."""
    # Sizes of a model do not count here: either --model gives them, or there is no plan.
    left = [word for word in unknown if not word.startswith("the sizes of ")]
    more = f" and {len(left) - _MOST} more" if len(left) > _MOST else ""
    without = f"; not counted: {_few(left)}{more}" if left else ""
    return _VERDICT.sub(lambda line: line[0] + without, text, count=1)


def _plan_row(imported: Imported, given: Mapping[str, Any], tell: Tell) -> _Planned:
    """Plan a run of an engine that trains decoders."""
    from .cli import to_json
    from .layout.layout_plan import plan_layout
    from .rows.line import read_line

    question = read_line(_row(imported, given))
    linked = {"cluster", "link_inside", "link_outside"} & set(given)
    cluster = (cluster_of(given) if linked else None) or question.cluster
    plan = plan_layout(question.layout, cluster, tell=tell)
    assumed = question.assumed | imported.assumed | plan.assumed
    held = question.logged(plan)
    now = outcome_of_plan(plan)
    words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in assumed.items())
    lines = [f"  assumed: {words or 'nothing'}", str(plan)]
    values = {"assumed": assumed, **to_json(plan), "logged_bytes": held.nbytes}
    variants = of_layout(plan.layout, cluster, plan.fits)
    return _Planned(values, "\n".join(lines), lambda: _changes(now, variants, cluster, tell))


def _row(imported: Imported, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a file, overruled by the options of the command."""
    changed = {name: given[name] for name in _OF_ROW if name in given}
    row = {name: value for name, value in imported.row.items() if value not in (None, "")}
    row.setdefault("gpu", GPU)
    imported.assumed |= {} if {"gpu", "cluster"} & set(given) or imported.row.get("gpu") else {"gpu": GPU}
    if "model" in changed:
        row.pop("arch", None)
    elif "arch" not in row and "model" not in row:
        raise RecipeError(_no_model(imported.unknown))
    if "gradient_accumulation_steps" in changed:
        row.pop("global_batch_size", None)
    if "gpus" in changed:
        imported.assumed.pop("gpus", None)
        row.pop("shard", None)
    return row | changed


def _plan_options(imported: Imported, given: Mapping[str, Any], tell: Tell) -> _Planned:
    """Plan a run of a Hugging Face model."""
    options = imported.options | {name: value for name, value in given.items() if value not in (False, 0, "")}
    if "model" not in options:
        raise RecipeError(_no_model(imported.unknown))
    cluster = cluster_of(options)
    if cluster is None:
        imported.assumed["gpu"], cluster = GPU, find_cluster(GPU)
    if "gpus" in given:
        imported.assumed.pop("gpus", None)
    if options.get("gpus", 1) == 1:
        options.pop("zero", None)
    asked = described(options)
    asked.assumed.update(imported.assumed)
    if asked.config.by_blocks:
        return _plan_blocks(asked, cluster, tell)
    from .plan import plan

    result = plan(asked.config, tell=tell, cluster=cluster)
    now = outcome_of_recipe(result, cluster)
    values = {"model": asked.config.model, "assumed": asked.assumed, **result.to_json()}
    variants = of_config(asked.config, now.fits)
    text = "\n".join([asked.heading, str(result)])
    return _Planned(values, text, None if result.remedies else lambda: _changes(now, variants, cluster, tell))


def _plan_blocks(asked: Described, cluster: Cluster, tell: Tell) -> _Planned:
    from .catalog.archs import arch_of
    from .cli import to_json
    from .layout.layout import layout_of
    from .layout.layout_plan import plan_layout

    config = asked.config
    plan = plan_layout(layout_of(config, arch_of(config.model)), cluster, tell=tell)
    asked.assumed.update(plan.assumed)
    now, variants = outcome_of_plan(plan), of_layout(plan.layout, cluster, plan.fits)
    text = "\n".join([asked.heading, str(plan)])
    return _Planned({"model": config.model, **to_json(plan)}, text, lambda: _changes(now, variants, cluster, tell))


def _changes(now: Outcome, variants: Iterator[tuple[str, Any]], cluster: Cluster, tell: Tell) -> list[Change]:
    def outcome(variant: Any) -> Outcome:
        tell("trying single changes")
        if isinstance(variant, TrainingConfig):
            return outcome_of_config(variant, cluster)
        return outcome_of_layout(variant, cluster)

    return best_changes(now, variants, outcome)


def _no_model(unknown: list[str]) -> str:
    named = next((word.removeprefix("the sizes of ") for word in unknown if word.startswith("the sizes of ")), "")
    if named:
        return f"The catalog does not have {named}: add --model with a name of the catalog or its config.json."
    return f"The file names no model: add --model NAME. Not understood: {_few(unknown)}."


def _few(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) or "nothing"
