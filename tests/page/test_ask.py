"""The page without a browser: its settings are the command's options, and its answers are the command's."""

import argparse
import json

from helpers.__main__ import main
from helpers.page import ask, search
from helpers.page.controls import CONTROLS, EXPORT_NAMES, OWN, to_json
from helpers.planner import RecipeError
from helpers.planner.cli import add_arguments
from helpers.planner.search import best, kept
from helpers.planner.search.words import ties

import pytest

TINY = {"model": "small-gpt", "gpu": "t4-16gb", "seq": 128, "precision": "fp16-amp", "lora_rank": 0}
LAYOUT = {"model": "gpt2", "gpus": 2, "seq": 256, "gradient_accumulation_steps": 2, "checkpointing": "none"}


@pytest.mark.parametrize("kind", CONTROLS)
def test_every_choice_of_every_control_is_one_that_the_command_takes(kind):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for control in CONTROLS[kind]:
        for value in [choice for choice, _ in control.choices] or [True if control.switch else "3"]:
            words = ask.arguments(kind, {control.name: value, "run_tokens": "1B"})
            parser.parse_args(words)
            assert not value or control.name in ("budget", "lora_rank") or control.flag in words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seq": "many"}, "not a whole number"),
        ({"no_such": 1}, "no control no_such"),
        ({"precision": "fp4"}, "cannot be 'fp4'"),
        ({"model": OWN}, "Paste the model's config.json"),
    ],
)
def test_what_no_control_has_is_refused(settings, words):
    with pytest.raises(RecipeError, match=words):
        ask.Asked("one", settings).parsed()


def test_a_refusal_calls_the_controls_what_the_page_calls_them():
    words = "Argument --micro-batch-size/--batch: invalid int; micro_batch_size is 0; --micro-batch-size-x, --no-such"
    assert (
        ask.in_words("one", words) == '"micro-batch": invalid int; "micro-batch" is 0; --micro-batch-size-x, --no-such'
    )
    assert ask.in_words("no kind", words) == words
    with pytest.raises(RecipeError) as error:
        ask.Asked("one", {"seq": 1.5}).parsed()
    assert ask.in_words("one", str(error.value)).startswith("\"sequence length\": '1.5' is not a")


@pytest.mark.parametrize(("settings", "words"), [({"tensor": 3}, "not a multiple of .* = 3"), ({"seq": ""}, "needs")])
def test_a_search_needs_a_batch(settings, words):
    with pytest.raises(RecipeError, match=words):
        search.options(ask.Asked("many", LAYOUT | {"gpus": 8} | settings))


def test_what_only_experts_set_is_folded_away():
    shown = {kind: {control.name for control in CONTROLS[kind] if not control.more} for kind in CONTROLS}
    assert "zero" in shown["many"]
    assert "schedule" not in shown["many"]


def test_zero_is_a_number_and_not_a_missing_one():
    assert ask.arguments("one", {"micro_batch_size": 0})[6:8] == ["--micro-batch-size", "0"]


def test_a_path_is_no_model():
    with pytest.raises(RecipeError, match="model cannot be"):
        ask.Asked("one", {"model": "/etc/passwd"})


@pytest.mark.slow
def test_the_answer_is_the_commands(capsys):
    events = []
    asked = ask.Asked("one", TINY)
    ask.plan(asked, events.append)
    early, final = (event["answer"] for event in events if "answer" in event)
    assert main([*ask.command(["plan", *asked.shown]).split()[1:], "--json", "--largest-batch"]) == 0
    said = json.loads(capsys.readouterr().out)
    for name in ("peak_allocated_bytes", "reserved_bytes", "grades", "forecasts", "largest_micro_batch", "assumed"):
        assert final[name] == said[name]
    assert "largest_micro_batch" not in early
    assert early["peak_allocated_bytes"] == final["peak_allocated_bytes"] < final["room"]


def test_the_path_of_ones_own_config_is_shown_nowhere():
    asked = ask.Asked("one", {"model": OWN}, '{"model_type": "no-such-model"}')
    with pytest.raises(RecipeError) as error:
        ask.plan(asked, lambda event: None)
    assert asked.options[1] != OWN
    assert asked.options[1] not in asked.clean(str(error.value))
    assert asked.shown[:2] == ["--model", OWN]


@pytest.mark.slow
def test_a_layout_has_its_timeline_and_every_engine_answers():
    events = []
    ask.plan(ask.Asked("many", LAYOUT), events.append)
    (final,) = (event["answer"] for event in events if "answer" in event)
    assert final["timeline"].lstrip().startswith("<?xml")
    assert final["gpu"] == "h100-80gb"
    llama, answers = LAYOUT | {"model": "llama-3.2-1b"}, {}
    for name, _ in EXPORT_NAMES["many"]:
        try:
            answers[name] = ask.export(ask.Asked("many", llama), name)
        except RecipeError as error:
            answers[name] = str(error)
    assert "parallel_degree" in answers["torchtitan"]
    assert all(answers.values())
    assert "torch.optim" in ask.export(ask.Asked("one", TINY | {"model": "gpt2"}), "pytorch")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchtitan", "megatron"])
def test_a_search_tells_of_each_layout_and_gives_its_settings(engine, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", "off")
    layout = LAYOUT | {"gpus": 1}
    asked = ask.Asked("many", layout)
    assert search.options(asked)[-4:] == ["--tokens-per-batch", "512", "--seq", "256"]
    monkeypatch.setattr(best, "BEST", 2)  # fewer plans
    monkeypatch.setattr(kept, "losers", lambda state, workers, tell: [])
    real = kept.answer
    monkeypatch.setattr(kept, "answer", lambda question, processes, *hear: real(question, 0, *hear))
    events = []
    search.search(asked, events.append)
    found = [event["found"] for event in events if "found" in event]
    rows = events[-1]["best"]
    assert {row["name"] for row in rows} <= {row["name"] for row in found}
    assert events[-1]["planned"] >= len(found) > 1
    again = []
    best_one = next(row for row in rows if row["settings"]["engine"] == engine)
    ask.plan(ask.Asked("many", layout | best_one["settings"]), again.append)
    (answer,) = (event["answer"] for event in again if "answer" in event)
    assert answer["step_seconds"] == pytest.approx(best_one["seconds"])
    assert answer["peak_allocated_bytes"] == best_one["bytes"]
    assert events[-1]["ties"] == "" or "tie: they lie within" in events[-1]["ties"]


def test_what_the_forecast_can_tell_apart_does_not_tie():
    class Found:
        def __init__(self, seconds):
            self.seconds, self.low, self.high = seconds, 0.9 * seconds, 1.1 * seconds

    assert ties([Found(1.0)]) == ties([Found(1.0), Found(2.0)]) == ""
    assert ties([Found(1.0), Found(1.1), Found(2.0)]).startswith("The first 2 of 3 tie: they lie within 10.0%")
    assert "All 2 tie" in ties([Found(1.0), Found(1.01)])


def test_the_controls_can_be_drawn_before_anything_heavy_is_imported():
    import subprocess
    import sys

    code = "import sys; from helpers.page.controls import to_json; to_json(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
    assert set(to_json()["longest"]) >= {"gpt2", "llama-2-7b"}
