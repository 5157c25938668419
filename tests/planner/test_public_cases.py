"""What people have reported of their own runs, and what `plan` says of these: bytes, seconds, and whether they ran."""

import json
from pathlib import Path

from helpers.__main__ import main

import pytest

from ..sampling import sample

CASES = {case["id"]: case for case in json.loads(Path(__file__).with_name("public_cases.json").read_text("utf-8"))}
BYTES, SECONDS = 0.10, 0.30  # at most so far off
# Reports that the planner misses, and by what.
MISSED = {
    "torchtitan887": [
        "reserved_gb"
    ],  # 38.7 GB beside 59 to 68: what the run recomputed is not stated; with full 39 to 45
    "axolotl814_b1": ["reserved_gb"],  # 53.7 to 60.3 GB beside 69.3; what the run recomputed is not stated
    "hf_bert_fp16": ["seconds"],  # 0.27 s beside 0.40: a V100 in fp16, with PyTorch 1.10 and its loss scaling
    "lg_falcon_qlora": ["allocated_gb"],  # 7.1 GB beside 9.4; litgpt also quantizes the head, and unpacks it: likewise
    "lg_gemma7b_qlora": ["allocated_gb"],  # 15.2 GB beside 17.2, a head of 256,000 rows
    "sw_qwen18b_512": ["reserved_gb"],  # 4.9 to 5.6 GB beside 7.5, in a run whose sequences had many lengths
    "tt_c": ["allocated_gb"],  # 46.7 GB beside 54.8: torchtune compiles the loss by itself, so FP32 logits are written
    "lf4133": ["verdict"],  # 36.9 to 41.5 GB of 41.8, in the update; DeepSpeed's buffer is freed before it
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(CASES), one_in=3))
def test_a_report_is_met_or_its_miss_is_known(name, tmp_path, capsys):
    case = CASES[name]
    model = case["model"]
    if isinstance(model, dict):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(model), encoding="utf-8")
        model = str(path)
    try:
        status = main(["plan", "--model", model, *case["options"].split(), "--json"])
    except SystemExit as refused:  # by argparse: an option's value
        status = refused.code
    if "refused" in case:
        assert status == 2
        assert case["refused"] in capsys.readouterr().err
        return
    assert status == 0
    missed = misses(case["stated"], json.loads(capsys.readouterr().out))
    assert missed == MISSED.get(name, [])


def misses(stated, answer):
    """Return the names of the stated figures that an answer does not meet."""
    (grade,) = answer["grades"].values()
    low, high = answer["reserved_bytes"]
    forecast = next(iter(answer.get("forecasts", {}).values()), {"seconds": answer.get("step_seconds")})
    met = {
        "allocated_gb": lambda gb: abs(answer["peak_allocated_bytes"] / 1e9 / gb - 1) <= BYTES,
        "reserved_gb": lambda gb: low / 1e9 / gb - 1 <= BYTES and 1 - high / 1e9 / gb <= BYTES,
        "seconds": lambda s: _off(forecast["seconds"], s) <= SECONDS,
        "verdict": lambda word: grade != ("does not fit" if word == "runs" else "fits"),
    }
    return [name for name, figure in stated.items() if not met[name](figure)]


def _off(forecast, stated):
    """Return how far a forecast is off; from the nearer end, where the source has rounded and two ends are stated."""
    low, high = stated if isinstance(stated, list) else (stated, stated)
    return max(1 - forecast / low, forecast / high - 1, 0.0)


def test_202_of_210_figures_are_met():
    # 96.2 %. Of the 8 misses, four are of programs that are not plain PyTorch (litgpt's quantized head, torchtune's
    # loss, DeepSpeed), two of runs whose recomputation is not stated, one of sequences of many lengths, one of old
    # software.
    figures = sum(len(case.get("stated", ())) for case in CASES.values())
    assert (figures - sum(map(len, MISSED.values())), figures) == (202, 210)
