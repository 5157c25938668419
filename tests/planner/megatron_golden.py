"""Megatron-LM's functional tests, by the memory that each of their runs allocated, beside what is planned.

`python -m tests.planner.megatron_golden FILE [WORDS...]` plans every case of a file of golden values whose name and
environment have these words, and prints a table by groups; with `--write` as the only word it goes to docs/accuracy.md.
A case is {"id", "args", "gpu", "gpus", "environment", "mem_max_allocated_bytes"}.
"""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from helpers.planner.config import RecipeError
from helpers.planner.importers.megatron import row_of
from helpers.planner.rows.answers import answer_rows

from .megatron_rows import PAGE
from .published import write_between

MARKS = "<!-- golden: python -m tests.planner.megatron_golden FILE --write writes this -->", "<!-- /golden -->"
NO_DECODERS = {
    "hybrid": "state-space layers",
    "nemotron": "state-space layers",
    "multimodal": "models of images and text",
    "mimo": "models of images and text",
}
PARTS = {  # of a group's name, by the argument that it has
    "transformer-impl=local": "own layers",
    "attention-backend=unfused": "unfused attention",
    "attention-backend=flash": "flash attention",
    "context-parallel-size=2": "context ranks",
    "cross-entropy-loss-fusion=true": "fused loss",
    "defer-embedding-wgrad-compute=true": "deferred matmuls of the logits",
    "qk-layernorm=true": "normed queries and keys",
    "num-distributed-optimizer-instances=2": "two optimizer instances",
    "recompute-granularity=full": "full recomputation",
    "num-layers-per-virtual-pipeline-stage=1": "interleaved",
    "num-experts": "experts",
}


def row_of_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of `plan --rows` for a case.

    Raises:
        RecipeError: it has an argument that is not understood.
    """
    family = case["id"].split("-")[1]
    if family in NO_DECODERS:
        raise RecipeError(f"{family}: {NO_DECODERS[family]}")
    # The file of cases leaves paths out, by which BERT is told from GPT; this tokenizer is its script's.
    told = {"tokenizer-type": "BertWordPieceLowerCase"} if family == "bert" else {}
    row, unknown = row_of(told | case["args"], case["gpus"] or 8, case["gpu"].split()[0].lower())
    if "release" in case["id"] and not case["gpus"]:  # these tests run on several nodes; others on one
        unknown.append("how many GPUs")
    if unknown:
        raise RecipeError("arguments: " + ", ".join(unknown))
    row["compile"] = False
    # Transformer Engine of this older container has no deterministic fused attention.
    if case["environment"].startswith("lts_dgxa100_dracooci") and row["deterministic"]:
        row["attention"] = "unfused"
    if "dracooci" in case["environment"]:  # Megatron before its commit e7c55de99e, whose head keeps no dummy gradient
        row["head_dummy"] = False
    if family == "moe":  # CUBLAS_WORKSPACE_CONFIG is ":4096:8" whatever the arguments (ENV_VARS in model_config.yaml)
        row["large_workspace"] = True
        # Before its commit 56818f9e50 Megatron put experts' results back by `scatter_add_`, deterministic or not; all
        # of this environment's values are older.
        row["deterministic"] &= "dracooci" not in case["environment"]
    return row


def group_of(case: Mapping[str, Any]) -> str:
    """Return the name of a case's group."""
    pairs = {f"{name}={value}" for name, value in case["args"].items()} | set(case["args"])
    return ", ".join([case["id"].split("-")[1].upper(), *(part for key, part in PARTS.items() if key in pairs)])


def plan_cases(cases: Iterable[Mapping[str, Any]]) -> tuple[list[tuple[Mapping[str, Any], int]], Counter[str]]:
    """Return the cases that are planned with their bytes, and how many are refused by which words."""
    rows, refused = [], Counter[str]()
    for case in cases:
        try:
            rows.append((case, row_of_case(case)))
        except RecipeError as error:
            refused[str(error)] += 1
    unlike = {json.dumps(row, sort_keys=True): row for _, row in rows}
    answers = dict(zip(unlike, answer_rows(list(unlike.values())), strict=True))
    planned = []
    for case, row in rows:
        answer = answers[json.dumps(row, sort_keys=True)]
        if answer["error"]:
            refused[answer["error"]] += 1
        else:
            planned.append((case, answer["peak_allocated_bytes"]))
    return planned, refused


def table(planned: Iterable[tuple[Mapping[str, Any], int]]) -> list[str]:
    """Return the lines of the table by groups, the largest first."""
    groups: dict[str, list[float]] = {}
    for case, nbytes in planned:
        groups.setdefault(group_of(case), []).append(nbytes / case["mem_max_allocated_bytes"] - 1)
    lines = ["| group | cases | within 1% | median error | from | to |", "|---|---|---|---|---|---|"]
    for name, errors in sorted(groups.items(), key=lambda group: -len(group[1])):
        near, median = sum(abs(error) <= 0.01 for error in errors), statistics.median(map(abs, errors))
        lines.append(f"| {name} | {len(errors)} | {near} | {median:.2%} | {min(errors):+.1%} | {max(errors):+.1%} |")
    every = [error for errors in groups.values() for error in errors]
    near, median = sum(abs(error) <= 0.01 for error in every), statistics.median(map(abs, every))
    lines += [
        "",
        f"{len(every)} cases are planned. Of these, {near / len(every):.0%} are within 1%; the median error is "
        f"{median:.2%}.",
    ]
    return lines


def main(path: str, *words: str) -> None:
    """Plan the cases of a file and print, or write, the table."""
    cases = [
        case for case in json.loads(Path(path).read_text(encoding="utf-8"))["rows"] if case["mem_max_allocated_bytes"]
    ]
    writes = words == ("--write",)
    cases = [case for case in cases if writes or all(word in f"{case['id']} {case['environment']}" for word in words)]
    planned, refused = plan_cases(cases)
    lines = table(planned)
    lines += [
        f"The planner refuses {refused.total()} of {len(cases)} cases, for these reasons:",
        "",
        "| cases | reason |",
        "|---|---|",
        *(f"| {count} | {_cut(why)} |" for why, count in refused.most_common()),
    ]
    if writes:
        write_between(PAGE, MARKS, "\n".join(lines))
        return
    for case, nbytes in planned:
        print(f"{nbytes / case['mem_max_allocated_bytes'] - 1:+.2%} {case['id']} {case['environment']}")
    print("\n".join(lines))


def _cut(reason: str) -> str:
    """Return a reason for a table: a long list of arguments is cut short, and a bar would end a cell."""
    names = reason.replace("|", "\\|").split(", ")
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
