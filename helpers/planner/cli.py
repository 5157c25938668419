"""python -m helpers plan: the planner on the command line.

Options become one description of a run (`described.py`); the description decides who answers. What prints or exports
reads the answer, or the description, and changes neither.
"""

import argparse
import contextlib
import gc
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.sign_of_life import lines_in_a_log
from ..core.table import text_table
from ..core.units import GiB, human_bytes
from .catalog.clusters import CLUSTERS, Cluster
from .catalog.configs import CONFIGS
from .catalog.gpus import GIGA, GPUS, Gpu
from .catalog.hub import catalog_or_path, hub_models
from .catalog.models import check_name, limits, model_names
from .catalog.this_machine import THIS
from .config import RecipeError
from .described import Described, cluster_of, described, no_gpus
from .grades import DOES_NOT_FIT, FITS, TIGHT
from .largest import Largest, largest_micro_batch
from .named import options_named
from .options import add_arguments as add_arguments
from .plan import Plan, gpus_of, plan, plan_on
from .script import STYLES, own_data, training_script
from .short_help import WIDTH
from .whole_run import WholeRun, check_numbers, read_tokens

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from .catalog.layout_rates import LayoutRates
    from .layout.layout import Layout
    from .layout.layout_plan import LayoutPlan
    from .layout_remedies import LayoutRemedy

Tell = Callable[[str], None]
SELDOM = 100_000  # new objects between two scans for garbage
NOTHING = "  no change that was tried makes it fit: it needs more GPUs (--gpus), or GPUs with more memory (--list)"
PLENTY = 0.2  # of what the GPU has for the allocator
WHOLE_RUN = {  # an option's name -> the attribute of a `WholeRun`
    "failures_per_gpu_day": "failures_per_gpu_day",
    "checkpoint_seconds": "save",
    "restart_seconds": "restart",
    "price_per_gpu_hour": "price",
}


def run(args: argparse.Namespace) -> int:
    """Plan the run in `args` and print the plan; return the exit status.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    if args.list:
        print(_catalog())
        return 0
    if args.rows:
        return _run_rows(args)
    if args.from_file:
        return _run_from(args)
    if not args.model:
        raise RecipeError("Which model? --model NAME, or --list to see the catalog.")
    with options_named(add_arguments), _bar(args.model) as tell:
        values, text = answer(args, tell)
    print(json.dumps(values, indent=2) if args.json else text, end="" if args.export else "\n")
    return 0


def answer(
    args: argparse.Namespace, tell: Tell, early: Callable[[dict[str, Any]], None] = lambda values: None
) -> tuple[dict[str, Any], str]:
    """Return what the options in `args` ask for: plain values, and words; of an export the words alone.

    Args:
        args: the options.
        tell: called with the name of each stage as it begins.
        early: called with the values of a plan, before what takes longer is added to them: remedies, or the largest
            micro-batch.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    args.model = catalog_or_path(args.model)
    _check(args)
    options = vars(args)
    with _quick_imports():
        cluster = cluster_of(options)  # before what takes seconds
        asked = described(options | _of_export(args))
        if args.export:
            return {}, _export(asked, cluster, args, tell)
        if asked.config.by_blocks:
            return _answer_by_blocks(asked, cluster, args, (tell, early))
        return _answer_whole(asked, cluster, args, (tell, early))


def _check(args: argparse.Namespace) -> None:
    """Refuse options about the answer that do not go together, before anything is planned."""
    check_name(args.model)  # before anything that takes seconds
    if not args.run_tokens and any(getattr(args, name) is not None for name in WHOLE_RUN):
        raise RecipeError("Failures, checkpoints, restarts and prices apply to a whole run: add --run-tokens N.")
    if (args.out or args.wrap) and not args.export:
        raise RecipeError("--wrap needs --export, and --out needs --export or --rows.")
    if args.wrap and not args.out:
        raise RecipeError(
            "--wrap prints the job; add --out FILE to say where to write the configuration that the job starts."
        )
    if args.export:
        _check_export(args)
    if args.export and (args.roles or args.timeline or args.json or args.run_tokens):
        raise RecipeError(
            "--export writes only the configuration: leave out --roles, --timeline, --json and --run-tokens."
        )
    if args.run_tokens:
        check_numbers(read_tokens(args.run_tokens), *(getattr(args, name) for name in WHOLE_RUN))
    if args.timeline:
        from .layout.timeline import check_format

        check_format(args.timeline)
    for path in (args.timeline, args.out):
        if path and not Path(path).resolve().parent.is_dir():
            raise RecipeError(f"{path}: there is no such folder.")


def _check_export(args: argparse.Namespace) -> None:
    from .exports import EXPORTS

    if args.export not in (*STYLES, *EXPORTS):
        raise RecipeError(f"There is no export {args.export!r}; choose one of {', '.join((*STYLES, *EXPORTS))}.")
    if args.export in STYLES and args.wrap:
        raise RecipeError(
            "--wrap works only with the configuration of an engine. The docstring of a script explains how to start it."
        )


# -- the two kinds of answers


def _answer_whole(
    asked: Described, cluster: Cluster | None, args: argparse.Namespace, hear: tuple[Tell, Callable]
) -> tuple[dict[str, Any], str]:
    """Return the answer for a Hugging Face model that is simulated as a whole: plain values, and words."""
    if args.timeline:
        raise RecipeError("--timeline needs an engine, or ranks that split the model: see --engine.")
    if cluster and args.budget is not None:
        raise RecipeError("Give a GPU or a budget, not both.")
    if args.rates:
        raise RecipeError("--rates needs an engine, or ranks that split the model: see --engine.")
    config, (tell, early) = asked.config, hear

    def values(result: Plan) -> dict[str, Any]:
        return {"model": config.model, "engine": config.engine, "assumed": asked.assumed, **result.to_json()}

    gpu = None if cluster else args.gpu
    result = plan(config, gpu, args.budget, tell, cluster, early=lambda first: early(values(first)))
    answer, lines = values(result), [asked.heading, str(result)]
    if cluster or args.gpu or args.budget:
        lines += [] if any(result.fits.values()) or result.remedies else [NOTHING]
        lines += _emulation(cluster.gpu if cluster else gpus_of(args.gpu, args.budget)[0], config.precision)
        lines += _room_left(result) if not args.largest_batch else []
    if args.roles:
        held = f"{result.peak_allocated_bytes / GiB:.2f}"
        lines += ["", text_table([("rank", "peak GiB", "at"), (_all(config.ranks), held, result.peak_at)])]
    if args.run_tokens:
        whole = _whole_run(*_rates(result, config.ranks), args)
        answer, lines = answer | {"run": whole.to_json()}, [*lines, str(whole)]
    if args.largest_batch:
        largest = _largest(result, cluster.gpu.name if cluster else args.gpu, args.budget, tell)
        answer |= {"largest_micro_batch": asdict(largest)}
        lines.append(f"  {largest}")
    if args.measure:
        from .measure import measure_recipe

        tell("measuring")
        measured = measure_recipe(config).peak_bytes
        error, predicted = result.peak_allocated_bytes / measured - 1, human_bytes(result.peak_allocated_bytes)
        lines.append(f"  predicted {predicted}, measured {human_bytes(measured)}, error {error:+.1%}")
        answer |= {"measured_bytes": measured}
    return answer, "\n".join(lines)


def _room_left(result: Plan) -> list[str]:
    """Return a line with what would use the room of the only GPU asked about, if a fifth of it is left; or none."""
    room = sum(result.room_bytes.values())
    if FITS not in result.grades.values() or room - result.reserved_bytes[1] < PLENTY * room:
        return []
    faster = "" if result.recipe.compile else "; --compile may make a step faster"
    return [f"  room is left: --largest-batch finds the largest micro-batch that fits{faster}"]


def _largest(result: Plan, gpu: str | None, budget: float | None, tell: Tell) -> Largest:
    """Return the largest micro-batch that fits the only GPU asked about."""
    if len(result.grades) != 1:
        raise RecipeError("--largest-batch needs one kind of GPU: name a --gpu, a --cluster or a --budget.")
    (one,) = gpus_of(gpu, budget)
    return largest_micro_batch(result, lambda recipe: plan_on(recipe, [one]), one.room, tell)


def _all(ranks: int) -> str:
    return "0" if ranks == 1 else f"0 to {ranks - 1}"


def _rates(result: Plan, ranks: int) -> tuple[int, float, tuple[float, float, float]]:
    """Return GPUs, parameters, and tokens per second of all GPUs: expected, at least, at most."""
    if len(result.forecasts) != 1:
        raise RecipeError("--run-tokens needs the seconds of a step on one kind of GPU: name a --gpu or a --cluster.")
    (each,) = result.forecasts.values()
    factors = (1.0, each.seconds / each.high, each.seconds / each.low)
    return ranks, result.parameters, tuple(ranks * each.per_second * factor for factor in factors)


def _emulation(gpu: Gpu, precision: str) -> list[str]:
    """Return a line for a GPU that has no units for BF16, or none."""
    if gpu.bf16 or not precision.startswith("bf16"):
        return []
    faster = "; --precision fp16-amp is faster" if gpu.flops16 > gpu.flops32 else ""
    return [f"  {gpu.name} has no BF16 units, so BF16 runs at the rate of FP32{faster}"]


def _answer_by_blocks(
    asked: Described, cluster: Cluster | None, args: argparse.Namespace, hear: tuple[Tell, Callable]
) -> tuple[dict[str, Any], str]:
    """Return the answer for a decoder whose blocks are simulated, a slice for each rank: plain values, and words."""
    for name in ("budget", "measure", "largest_batch"):
        if getattr(args, name):
            raise RecipeError(
                f"--{name.replace('_', '-')} works for one GPU in plain PyTorch, not for ranks that split a model "
                "or for an engine."
            )
    if cluster is None:
        raise no_gpus()
    layout, (tell, early) = _layout(asked), hear
    tell("importing PyTorch")
    from .layout.layout_plan import plan_layout

    rates, moved = _own_rates(args, cluster)
    result = plan_layout(layout, cluster, rates, tell)
    asked.assumed.update(result.assumed)
    answer = {"model": args.model, "engine": layout.engine, "assumed": asked.assumed, **to_json(result)}
    lines = [asked.heading, str(result)]
    if args.link_inside is not None or args.link_outside is not None:
        inside, outside = (f"{speed / GIGA:,.4g} GB/s" for speed in (cluster.inside, cluster.outside))
        lines.append(f"  links of a GPU, each way: {inside} in its node, {outside} to other nodes")
    if not result.fits:
        from .layout_remedies import layout_remedies

        early(answer)
        remedies = layout_remedies(result, rates, tell)
        answer |= {"remedies": [each.to_json() for each in remedies]}
        lines += _of_remedies(remedies)
    if moved:
        answer |= {"rates": moved}
        lines += [f"  rates of {Path(args.rates).name}, relative to the forecast's: {'; '.join(moved)}"]
    if args.run_tokens:
        rates = tuple(layout.tokens / seconds for seconds in (result.seconds, result.high, result.low))
        whole = _whole_run(layout.ranks, layout.arch.count(), rates, args)
        answer, lines = answer | {"run": whole.to_json()}, [*lines, str(whole)]
    lines += ["", text_table(result.role_table())] if args.roles else []
    if args.timeline:
        tell("drawing")
        from .layout.timeline import write_timeline

        write_timeline(result, args.timeline)
        lines.append(f"  timeline in {args.timeline}")
    return answer, "\n".join(lines)


def _of_remedies(remedies: "list[LayoutRemedy]") -> list[str]:
    from .layout_remedies import SAME

    if not remedies:
        return [NOTHING]
    head = f"  what to change, the fastest first, with {SAME}, and the memory allocated after the change:"
    width = max(len(remedy.options) for remedy in remedies)
    return [head, *(f"    {remedy.options:<{width}}  {remedy}" for remedy in remedies)]


def _own_rates(args: argparse.Namespace, cluster: Cluster) -> tuple["LayoutRates | None", list[str]]:
    """Return the rates of `--rates` for a cluster, and by how much each part moved; None without."""
    if not args.rates:
        return None, []
    from .rates.applied import applied

    own = applied(args.rates)
    return own.rates(cluster), own.words(cluster)


def _layout(asked: Described) -> "Layout":
    from .catalog.archs import arch_of
    from .layout.layout import layout_of

    return layout_of(asked.config, arch_of(asked.config.model))


def _whole_run(gpus: int, parameters: float, rates: tuple[float, float, float], args: argparse.Namespace) -> WholeRun:
    """Return the run of `--run-tokens` tokens in steps as planned."""
    given = {field: value for name, field in WHOLE_RUN.items() if (value := getattr(args, name)) is not None}
    return WholeRun(read_tokens(args.run_tokens), gpus, parameters, rates, **given)


def to_json(plan: "LayoutPlan") -> dict[str, Any]:
    """Return a plan as plain lists, dictionaries and numbers; without what each rank does when."""
    ranks = [
        {
            "peak_allocated_bytes": rank.nbytes,
            "at_peak": dict(rank.peak),
            "peak_at": rank.at,
            "in_flight": rank.in_flight,
        }
        for rank in plan.ranks
    ]
    return {
        "layout": asdict(plan.layout) | {"transformer_engine": plan.layout.uses_transformer_engine},
        "cluster": asdict(plan.cluster),
        "peak_allocated_bytes": plan.worst.nbytes,
        "reserved_bytes": list(plan.wanted),
        "grades": {plan.cluster.gpu.name: plan.grade},
        "fits": {plan.cluster.gpu.name: plan.fits},
        "step_seconds": plan.seconds,
        "step_seconds_interval": [plan.low, plan.high],
        "tokens_per_step": plan.layout.tokens,
        "tokens_per_second_per_gpu": plan.tokens_per_second,
        "gpu_hours_per_billion_tokens": plan.gpu_hours_per_billion_tokens,
        "mfu": plan.mfu,
        "hfu": plan.hfu,
        "bound_by": plan.bound_by,
        "parts": dict(plan.parts),
        "pipeline_ranks": ranks,
    }


# -- exports


def _of_export(args: argparse.Namespace) -> dict[str, Any]:
    """Return whose engine an export is for, where nobody says who trains. It prints no figures that this could move."""
    if not args.export or args.engine or args.export in STYLES:
        return {}
    return {"engine": "megatron" if args.export.startswith("megatron") else "torchtitan"}


def _export(asked: Described, cluster: Cluster | None, args: argparse.Namespace, tell: Tell) -> str:
    """Return what is to be printed in place of a plan: the configuration; of one in a file, its job or its verdict."""
    from .exports import FILES, command, environment, export, wrap

    script = args.export in STYLES
    path = Path(args.out or "train.py")
    if script:
        text = training_script(asked.config, args.export, path.name)
    else:
        text = export(_layout(asked), args.model, args.export, _heading_name(cluster))
    if not args.out:
        return text
    job = ""
    if args.wrap:
        layout = _layout(asked)
        if cluster is None:
            raise no_gpus()
        if path.name != FILES[args.export]:
            raise RecipeError(
                f"The job starts {FILES[args.export]}, but --out is {args.out}: name the file {FILES[args.export]}, in "
                "any folder, and start the job in that folder."
            )
        if layout.ranks > cluster.node and layout.ranks % cluster.node:
            raise RecipeError(f"{layout.ranks} GPUs do not fill nodes of {cluster.node}: see --gpus-per-node.")
        node = min(layout.ranks, cluster.node)
        variables = environment(layout, args.export, cluster.gpu)
        job = wrap(command(args.export), layout.ranks // node, node, args.wrap, cluster.name, variables)
    path.write_text(text, encoding="utf-8", newline="\n")
    if args.wrap:
        return job
    own = own_data(asked.config).replace(" NAME ", " NAME-OR-FOLDER ")
    start = next((f"{line} {own}" for line in text.splitlines() if script and line.startswith("Run: ")), "")
    try:
        verdict = _verdict(asked, cluster, args, tell)
    except RecipeError as error:  # the file is written all the same
        verdict = [f"It was not planned: {error}"]
    return "".join(f"{line}\n" for line in (f"Wrote {path}.", *filter(None, [start]), *verdict))


def _heading_name(cluster: Cluster | None) -> str:
    """Return the name by which `--from` finds the GPUs again; "" of those that the catalog does not have."""
    return cluster.gpu.name if cluster and cluster.gpu.name in GPUS else ""


def _verdict(asked: Described, cluster: Cluster | None, args: argparse.Namespace, tell: Tell) -> list[str]:
    """Return whether the exported run fits: the GPU that was asked about, or a line for all that it fits, and so on."""
    if asked.config.by_blocks:
        if cluster is None:
            return ["Without --gpu or --cluster, there is no verdict on whether it fits."]
        from .layout.layout_plan import plan_layout

        rates, _ = _own_rates(args, cluster)
        result = plan_layout(_layout(asked), cluster, rates, tell)
        return [f"{result.layout.ranks} x {cluster.gpu.name}: {result.verdict}"]
    gpus = [cluster.gpu] if cluster else gpus_of(args.gpu, args.budget)
    grades = plan_on(asked.config, gpus).grades
    if len(grades) == 1:
        return [f"{name}: {said}" for name, said in grades.items()]
    named = {said: [name for name, each in grades.items() if each == said] for said in (FITS, TIGHT, DOES_NOT_FIT)}
    return [f"{said}: {', '.join(names)}" for said, names in named.items() if names]


# -- around it


@contextlib.contextmanager
def _bar(model: str) -> Iterator[Tell]:
    """Show a bar on the terminal, or a line every 30 seconds elsewhere; yield a function that hears of each stage."""
    from tqdm import tqdm

    bar = tqdm(total=6, disable=None, leave=False, bar_format="{desc:<34}{bar}{elapsed}")
    bar.set_description_str(f"reading {model}")
    with bar, lines_in_a_log(lambda: bar.desc):

        def tell(stage: str) -> None:
            if stage:
                bar.set_description_str(stage)
                bar.update()

        yield tell


@contextlib.contextmanager
def _quick_imports() -> Iterator[None]:
    """Let packages look missing that transformers and PEFT import if they can, and scan for garbage seldom.

    The planner has stand-ins for what it needs of bitsandbytes and torchao, and needs nothing of SciPy. In a notebook
    nothing is hidden: it may want the real ones. What an import makes is there to stay: it is not scanned.
    """
    unwanted = ["bitsandbytes", "torchao"]
    if "transformers" not in sys.modules:  # which otherwise may know that SciPy is there
        unwanted.append("scipy")
    hidden = [name for name in unwanted if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    before = gc.get_threshold()
    gc.set_threshold(SELDOM)
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation, unscanned
        gc.set_threshold(*before)
        for name in hidden:
            sys.modules.pop(name, None)


def _run_rows(args: argparse.Namespace) -> int:
    """Plan every line of a file; return the exit status."""
    from tqdm import tqdm

    from .rows.answers import answer_rows, read_lines

    lines = list(read_lines(Path(args.rows).read_text(encoding="utf-8")))
    if args.rates:
        _tell_what_moved(lines, args.rates)
    bar = tqdm(total=len(lines), disable=None, leave=False, desc="layouts")
    with _quick_imports(), bar, lines_in_a_log(lambda: f"{bar.n} of {bar.total} layouts"):

        def tell(done: int) -> None:
            bar.n = done
            bar.refresh()

        answers = answer_rows(lines, tell, args.rates or "")
    text = "".join(json.dumps(answer) + "\n" for answer in answers)
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8", newline="\n")
    else:
        print(text, end="")
    return 0


def _tell_what_moved(lines: list[dict[str, Any]], path: str) -> None:
    """Say on stderr by how much the rates of a file move the forecast, for each GPU of the lines that it is about.

    Raises:
        RecipeError: the file is of none of their GPUs, or contradicts itself.
    """
    from .rates.applied import applied
    from .rows.line import read_line

    own, refused = applied(path), []
    clusters = {}
    for line in lines:
        with contextlib.suppress(RecipeError):
            cluster = read_line(line).cluster
            clusters[cluster.name] = cluster
    for name, cluster in clusters.items():
        try:
            print(f"{name}: {'; '.join(own.words(cluster))}", file=sys.stderr)
        except RecipeError as error:
            refused.append(str(error))
    if clusters and len(refused) == len(clusters):
        raise RecipeError(refused[0])


def _run_from(args: argparse.Namespace) -> int:
    """Plan the run that a file describes; return the exit status."""
    from .from_file import print_from

    for name in ("export", "out", "wrap", "budget", "measure", "timeline", "run_tokens", "roles", "largest_batch"):
        if getattr(args, name):
            raise RecipeError(
                f"--{name.replace('_', '-')} cannot be combined with --from, which plans a file as it is."
            )
    with _quick_imports(), options_named(add_arguments), _bar(args.from_file) as tell:
        print_from(args, tell)
    return 0


def _catalog() -> str:
    lines = ["models"]
    mixtures = [name for name, config in CONFIGS.items() if config.mixture]
    for name in [*model_names(), *mixtures]:
        context, side = limits(name)
        reads = f"images of {side} x {side}" if side else f"up to {context:,} tokens"
        lines.append(f"  {name:<18}{reads}{'; on one GPU, with --engine or --quantize' if name in mixtures else ''}")
    others = textwrap.fill(", ".join(hub_models()), WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", "more models, under these names or those of their repositories on huggingface.co", others]
    lines += ["", f"{'GPUs':<18}{'GiB usable':>11}{'GB/s':>8}{'TFLOP/s: FP32':>16}{'TF32':>8}{'16 bits':>9}{'FP8':>8}"]
    for gpu in GPUS.values():
        tf32, flops8 = (f"{rate / 1e12:,.0f}" if rate else "-" for rate in (gpu.tf32, gpu.flops8))
        rates = f"{gpu.flops32 / 1e12:>16,.0f}{tf32:>8}{gpu.flops16 / 1e12:>9,.0f}{flops8:>8}"
        lines.append(f"  {gpu.name:<16}{gpu.total / 2**30:>11.2f}{gpu.bandwidth / 1e9:>8,.0f}{rates}")
    lines.append(f"  {THIS:<16}this machine, once python -m helpers roofline has measured it")
    lines += ["", f"{'clusters':<18}{'of':<16}{'in a node':>9}{'GB/s inside':>13}{'outside':>9}"]
    for cluster in CLUSTERS.values():
        links = f"{cluster.inside / GIGA:>13,.0f}{cluster.outside / GIGA:>9,.3g}"
        lines.append(f"  {cluster.name:<16}{cluster.gpu.name:<16}{cluster.node:>9}{links}")
    return "\n".join(lines)
