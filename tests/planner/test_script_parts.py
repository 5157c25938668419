"""Parts of an exported script, each alone: chats, the optimizer, what is refused before anything is loaded."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

from helpers.core.byte_tokenizer import byte_tokenizer
from helpers.planner import ParallelConfig, Recipe
from helpers.planner.script import training_script

import pytest
import torch
import transformers
from torch import nn

from .scripts import functions

SCRIPT = functions(Recipe("gpt2", precision="bf16-amp"))
TURNS = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2 + 1?"},
    {"role": "assistant", "content": "3"},
]


# -- chats


def _counted(turns, tokenizer):
    return [text for text, counts in SCRIPT["pieces"](turns, tokenizer) if counts]


def test_a_chat_has_three_forms():
    turns = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]
    for chat in (
        {"messages": turns},
        {"prompt": "1?", "answer": "2"},
        {"prompt": "1?", "completion": "2"},
        {"prompt": turns[:1], "completion": turns[1:]},
    ):
        assert SCRIPT["turns_of"](chat) == turns


def test_every_turn_of_the_assistant_counts_up_to_the_end_of_turn_of_the_template():
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ord("~"))  # a base model's: not the one that ends turns
    found = SCRIPT["pieces"](TURNS, tokenizer)
    assert [text for text, counts in found if counts] == ["2\x02", "3\x02"]
    rendered = tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert "".join(text for text, _ in found) == rendered.rstrip()


def test_a_template_without_an_end_of_turn_gets_the_tokenizers():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    assert "".join(_counted(TURNS, tokenizer)) == f"2{tokenizer.eos_token}3{tokenizer.eos_token}"


def test_of_a_template_that_rewrites_earlier_turns_the_last_one_counts():
    tokenizer = byte_tokenizer()
    last = "{% for m in messages %}{{ (m.content if loop.last else m.content | upper) + end }}{% endfor %}"
    tokenizer.chat_template = "{% set end = '\x02' %}" + last
    turns = [turn | {"content": f"said by {turn['role']}"} for turn in TURNS]
    assert _counted(turns, tokenizer)[-1].endswith("assistant\x02")
    assert len(_counted(turns, tokenizer)) == 1


def test_a_tokenizer_without_a_template_gets_one_that_is_saved_with_it(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    transformers.GPT2Config().save_pretrained(tmp_path / "base")
    made = SCRIPT["make_tokenizer"](SimpleNamespace(weights=str(tmp_path / "base")))
    assert _counted(TURNS, made) == [f"2{made.eos_token}", f"3{made.eos_token}"]
    SCRIPT["save_the_rest"](SimpleNamespace(weights=str(tmp_path / "base")), tmp_path)
    kept = transformers.AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(TURNS, tokenize=False)
    assert kept == made.apply_chat_template(TURNS, tokenize=False)
    assert "### user:\n1 + 1?" in kept


def test_chats_that_are_too_long_are_dropped_and_counted(tmp_path, capsys):
    chats = [{"prompt": "a" * (90 if n % 4 == 0 else 5), "answer": "b" * 20} for n in range(8)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    rows = SCRIPT["pack"](SCRIPT["chats"](tmp_path / "chats.jsonl", None), 32)
    assert "2 of 8 chats were dropped: they are longer than a row" in capsys.readouterr().out
    ids, labels, positions = rows
    assert rows.shape == (3, 6, 32)
    assert (labels != -100).sum(1).tolist() == [21] * 6
    assert ids[0, :5].tolist() == [ord("a")] * 5
    assert positions[0, :27].tolist() == [*range(26), 0]


@pytest.mark.parametrize("line", ["{", '{"question": "a"}', "[1]", '{"messages": "a"}'])
def test_a_line_that_is_no_chat_is_named(line, tmp_path):
    (tmp_path / "chats.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' + line)
    with pytest.raises(SystemExit, match="line 2: neither messages nor prompt and answer"):
        list(SCRIPT["chats"](tmp_path / "chats.jsonl", None))


# -- an update


def _run(script, model, rank=0, world=1):
    """Return a run on rows of random text, as the script's `Run` would make it of `model`."""
    run = object.__new__(script["Run"])
    run.device, run.rank, run.world, run.steps, run.args = torch.device("cpu"), rank, world, 4, SimpleNamespace(lr=0.1)
    run.done, run.skipped_in_a_row = {"step": 0, "rows": 0, "skipped": 0, "before": None}, 0
    run.model = run.inner = model
    run.trained = list(model.parameters())
    run.optimizer = script["make_optimizer"](run.trained, 0.1)
    run.train = torch.randint(256, (1, 8, 32), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    return run


def _gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=256, n_embd=32, n_head=2, n_layer=1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_skipped_and_counted(bad, capsys):
    run = _run(SCRIPT, _gpt2())
    weight = run.trained[1]
    run.update()
    before = [p.detach().clone() for p in run.trained]
    hook = weight.register_hook(lambda gradient: gradient * bad)
    *_, norm, _ = run.update()
    hook.remove()
    assert not math.isfinite(norm)
    assert all(torch.equal(p, old) for p, old in zip(run.trained, before, strict=True))
    assert (run.done["skipped"], run.done["step"], run.skipped_in_a_row) == (1, 2, 1)
    assert "step 2 is skipped" in capsys.readouterr().out
    run.update()
    assert run.skipped_in_a_row == 0
    assert not torch.equal(weight, before[1])


def test_a_step_in_the_backward_pass_skips_what_is_not_finite():
    script = functions(Recipe("gpt2", precision="fp32", step_in_backward=True))
    run = _run(script, _gpt2())
    for p, optimizer in zip(run.trained, run.optimizer, strict=True):
        p.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: run.step_and_free(optimizer, p))
    before = [p.detach().clone() for p in run.trained]
    run.trained[1].register_hook(lambda gradient: gradient * float("nan"))
    run.update()
    assert torch.equal(run.trained[1], before[1])
    assert run.done["skipped"] == 1
    assert all(torch.isfinite(p).all() for p in run.trained)


def test_each_rank_and_step_has_its_own_dropout():
    seeds = []
    for rank in range(2):
        run = _run(SCRIPT, _gpt2(), rank, world=2)
        for _ in range(3):
            run.update()
            seeds.append(torch.initial_seed())
    assert len(set(seeds)) == 6


def test_norms_and_biases_do_not_decay():
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    groups = SCRIPT["make_optimizer"](list(layers.parameters()), 0.1).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.01, 1), (0.0, 3)]
    each = functions(Recipe("gpt2", step_in_backward=True))["make_optimizer"](list(layers.parameters()), 0.1)
    assert [one.param_groups[0]["weight_decay"] for one in each] == [0.01, 0.0, 0.0, 0.0]


def test_bf16_that_swallows_updates_is_warned_of(capsys):
    warn = functions(Recipe("gpt2", precision="bf16"))["warn_of_rounding"]
    weights = [torch.randn(1000, 100).mul(0.02).bfloat16()]
    warn(weights, 1e-5)
    told = capsys.readouterr().out
    warn(weights, 1e-2)
    warn([torch.randn(1000, 100)], 1e-5)
    assert "Warning: at a rate of 1e-05, BF16 rounds away" in told
    early = int(told.partition("updates of ")[2].partition("%")[0])
    assert 75 < early < 92  # of N(0, 0.02), BF16 leaves 84 % as they are
    assert capsys.readouterr().out == ""
    assert "warn_of_rounding" not in SCRIPT
    assert "warn_of_rounding" not in functions(Recipe("gpt2", lora_rank=4))


@pytest.mark.slow
def test_compiled_attention_has_a_mask_for_packed_chats_alone():
    script = functions(Recipe("llama-3.2-1b", compile=True, precision="fp32"))
    ids = torch.randint(256, (2, 32))
    for text, masked in (("book.txt", False), ("chats.jsonl", True)):
        masks = []

        def look(graph, _, masks=masks):
            calls = [node for node in graph.graph.nodes if "scaled_dot_product" in str(node.target)]
            masks += [(node.kwargs["attn_mask"] is not None, node.kwargs["is_causal"]) for node in calls]
            return graph.forward

        torch._dynamo.reset()
        model = script["make_model"](SimpleNamespace(weights=None, text=text, tiny=True))
        batch = torch.stack([ids, ids, torch.arange(32).expand(2, 32)]) if masked else ids[None]
        compiled = torch.compile(model, backend=look)
        loss = script["loss_of"](compiled, batch, 62)
        assert masks == [(masked, not masked)] * 2
        assert loss.item() == pytest.approx(script["loss_of"](model, batch, 62).item(), rel=1e-5)


# -- what is chosen, and what is refused


def test_defaults_follow_the_recipe(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "--tiny"])
    for recipe, rate in (
        (Recipe("gpt2", lora_rank=4), 2e-4),
        (Recipe("gpt2", precision="bf16-amp"), 3e-4),
        (Recipe("gpt2", optimizer="sgd"), 1e-2),
    ):
        assert functions(recipe)["arguments"]().lr == rate
    full = functions(Recipe("gpt2", precision="bf16-amp"))
    transformers.GPT2Config().save_pretrained(tmp_path / "base")
    monkeypatch.setattr("sys.argv", ["train.py", "--tiny", "--weights", str(tmp_path / "base")])
    assert full["arguments"]().lr == 2e-5


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (1, "Run: python train.py"),
        (8, "Run: torchrun --standalone --nproc-per-node=8 train.py"),
        (16, "Run: torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train.py"),
        (12, "--nnodes=2 --nproc-per-node=6 "),
    ],
)
def test_more_than_eight_ranks_are_several_nodes(ranks, line):
    recipe = Recipe("gpt2", parallel=ParallelConfig(shard=ranks))
    assert line in training_script(recipe)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("mine.py", "python mine.py\n"), ("my run.py", "python 'my run.py'\n"), ('a"""b.py', "python FILE.py\n")],
)
def test_the_docstring_names_the_file(name: str, shown: str):
    text = training_script(Recipe("gpt2"), name=name)
    compile(text, "script", "exec")
    assert f"Run: {shown}" in text


@pytest.fixture
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize("style", ["pytorch", "trainer"])
def test_a_missing_gpu_is_an_error(style, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["train.py", "--out", "out"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(SystemExit, match=r"finds (0 GPUs|no GPU).*--cpu"):
        functions(Recipe("gpt2", precision="bf16-amp"), style)["main"]()
    assert torch.get_float32_matmul_precision() == "high"  # TF32


def test_an_adapter_is_saved_without_gathering_the_frozen_base():
    sharded = training_script(Recipe("gpt2", lora_rank=4, parallel=ParallelConfig(shard=2)))
    assert "self.adapter().items()" in sharded.partition("def save_model")[2]
    assert "get_model_state_dict" not in sharded
    assert "adapter" not in training_script(Recipe("gpt2", parallel=ParallelConfig(shard=2))).partition("class Run")[2]


def test_a_step_in_the_backward_pass_is_refused_over_ranks():
    with pytest.raises(SystemExit, match="start without torchrun"):
        functions(Recipe("gpt2", step_in_backward=True))["prepare"](None, torch.device("cpu"), 0, 2)


def _refused(script, monkeypatch, capsys, *options):
    monkeypatch.setattr("sys.argv", ["train.py", "--tiny", *options])
    with pytest.raises(SystemExit) as end:
        script["arguments"]()
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--text", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--weights", "./nowhere"], "--weights ./nowhere: "),
        (["--out", "file/out"], "NotADirectoryError"),
        (["--checkpoint-every", "2", "--checkpoints", "file/here"], "NotADirectoryError"),
    ],
)
def test_paths_are_checked_before_anything_is_loaded(options, complaint, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert complaint in _refused(SCRIPT, monkeypatch, capsys, *options)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--text", "other.txt"], "text was"),
        (["--lr", "0.5"], "lr was 0.0003, is 0.5"),
        (["--steps", "9"], "steps was 4, is 9"),
        (["--epochs", "1"], "epochs was 3.0, is 1.0"),
        (["--weights", "base"], "weights was None, is base"),
        (None, "recipe was"),
    ],
)
@pytest.mark.parametrize("style", ["pytorch", "trainer"])
def test_resume_refuses_another_run_unless_told(style, change, named, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    transformers.GPT2Config().save_pretrained(tmp_path / "base")
    (tmp_path / "text.txt").write_text("a" * 99)
    (tmp_path / "other.txt").write_text("b" * 99)
    script = functions(Recipe("gpt2", precision="bf16-amp"), style)
    same = ["--text", "text.txt"]
    monkeypatch.setattr("sys.argv", ["train.py", "--tiny", *same])
    folder = tmp_path / "checkpoints" / ("step-3" if style == "pytorch" else "checkpoint-3")
    folder.mkdir(parents=True)
    settings = script["settings"](script["arguments"]())
    (folder / "run.json").write_text(json.dumps({"settings": json.loads(json.dumps(settings))}))
    monkeypatch.setattr("sys.argv", ["train.py", "--tiny", *same, "--resume"])
    script["arguments"]()  # the same run goes on
    other = script if change else functions(Recipe("gpt2", precision="bf16-amp", seq=64), style)
    if change and change[0] == "--weights":
        change = [*change, "--lr", "3e-4"]
    assert named in _refused(other, monkeypatch, capsys, *same, *(change or []), "--resume")
    monkeypatch.setattr("sys.argv", ["train.py", "--tiny", *same, *(change or []), "--resume", "--allow-changes"])
    other["arguments"]()


# -- on the disk


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_the_name_of_a_checkpoint_is_on_the_disk_before_an_older_one_goes(tmp_path, monkeypatch):
    events, fsync, rename = [], os.fsync, Path.rename

    def noted(number):
        events.append(("sync", tmp_path / os.path.relpath(os.readlink(f"/proc/self/fd/{number}"), tmp_path.resolve())))
        return fsync(number)

    def moved(path, to):
        events.append(("name", Path(to)))
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", moved)
    run = SimpleNamespace(rank=0, done={}, args=None, state=lambda: {"model": torch.ones(2)})
    monkeypatch.setitem(SCRIPT, "settings", lambda args: {})
    for step in range(1, 5):
        events.clear()
        SCRIPT["Run"].publish(run, tmp_path, f"step-{step}", 1.0 / step)
    unfinished = tmp_path / "unfinished"
    named, gone = events.index(("name", tmp_path / "step-4")), events.index(("name", unfinished))
    before = {path for what, path in events[:named] if what == "sync"}
    assert before == {unfinished, unfinished / "state.pt", unfinished / "run.part"}
    assert ("sync", tmp_path) in events[named:gone]
