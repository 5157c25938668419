"""What stands in for data and models because the script's arguments, or their names, say what they are."""

import io
import sys
import textwrap
from pathlib import Path

from helpers.__main__ import main
from helpers.virtual_gpu.absent import asked
from helpers.virtual_gpu.absent.columns import layout_of, value
from helpers.virtual_gpu.absent.models import known_config
from helpers.virtual_gpu.absent.named import is_named_folder, named_columns, single_tokens

import pytest


@pytest.fixture
def arguments(monkeypatch):
    """Let the script have these arguments."""
    return lambda *words: monkeypatch.setattr(sys, "argv", ["train.py", *words])


def test_columns_that_the_arguments_name_are_there(arguments):
    arguments("--image_column", "photo", "--label_column_name=stars", "--text_column_name", "title,body", "--lr", "1")
    assert named_columns() == {"photo": "image", "stars": "label", "title": "short", "body": "text"}
    datasets = pytest.importorskip("datasets")
    from helpers.virtual_gpu.absent.data import made_up

    rows = made_up("someone/reviews", "train", False)
    assert isinstance(rows, datasets.Dataset)
    assert {"text", "photo", "stars", "title", "body"} == set(rows.column_names)


READS = """
def prepare(row, config, tokenizer):
    batch = tokenizer(row["review"], row['Star rating'], f"{row['title']}")
    batch["labels"], batch["extra"] = row["label"], 1
    loss = model(**batch)["loss"]
    return {"text": [turn["from"] + turn["value"] for turn in row["conversations"]], "extra": batch["extra"]}

data = load_dataset(config["path"], token=os.environ["HF_TOKEN"])["train"].rename_column("old", "new")
data = data.map(prepare, remove_columns=["id", "photo"]).with_format("torch", columns=["input_ids", "wave"])
"""


def test_columns_are_there_that_the_code_reads():
    found = asked._columns_of(READS)
    assert found == {
        **{"review": "text", "Star rating": "label", "title": "short", "label": "label", "conversations": "shared"},
        **{"old": "text", "id": "text", "photo": "image", "wave": "speech"},
    }
    assert [turn["from"] for turn in value("shared", 0)] == ["human", "gpt"] * 2
    assert asked._columns_of("%matplotlib inline") == {}


CHOICES = """
labels = {"bad": 0, "good": 1}
y = [labels[row["mood"]], {"a": 1, "b": 2}[row["part"].strip()], row["spam"].lower() == "ham"]
z = row["tone"] in ("x", "y")
frame["target"] = frame["sentiment"].map({"positive": 1, "negative": 0})
"""


def test_a_column_holds_the_words_that_the_code_compares_it_with():
    found = {name: [value(kind, row) for row in range(3)] for name, kind in asked._columns_of(CHOICES).items()}
    assert found == {
        "mood": ["bad", "good", "bad"],
        "part": ["a", "b", "a"],
        "sentiment": ["positive", "negative", "positive"],
        "spam": ["ham", "other", "ham"],
        "tone": ["x", "y", "x"],
    }


FILES = """
import csv, json, torch

rows = list(csv.DictReader(open("data/train.csv")))
pairs = json.load(open("data/train_pairs.json"))
print(len(rows), len(rows[0]["headline"].split()), int(rows[1]["label"]), pairs[0]["source"][:9], list(pairs[0]))
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


@pytest.mark.parametrize("source", ["train.py", "-"])
def test_files_have_the_columns_that_the_code_reads(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(FILES))
    Path("train.py").write_text(FILES)
    code = main(["dry-run", "--gpu", "t4", "--fake-data", source])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "1024 1500 1 the model ['text', 'headline', 'label', 'source']" in out
    assert "train.csv: made-up rows with headline, label, source, which the script reads" in out


PATHS = """
import json, sys, torch
from pathlib import Path

rows = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
print(len(rows), rows[0]["answer"][:9], len(open("support.csv").readlines()))
try:
    open("settings.json")
except FileNotFoundError:
    print("no settings")
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


def test_files_are_made_up_that_arguments_name_or_that_hold_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PATHS)
    code = main(["dry-run", "--gpu", "t4", "--fake-data", "train.py", "--train_file", "support.jsonl"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "1024 the model 1025\nno settings" in out
    assert main(["dry-run", "--gpu", "t4", "train.py", "--train_file", "support.jsonl"]) == 1
    assert "FileNotFoundError" in capsys.readouterr().err


def test_what_a_data_set_is_known_to_have_is_not_guessed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(FILES.replace("train_pairs", "alpaca_data").replace("source", "input"))
    main(["dry-run", "--gpu", "t4", "--fake-data", "train.py"])
    out = capsys.readouterr().out
    assert "['instruction', 'input', 'output', 'text']" in out
    assert "alpaca_data.json: made-up rows\n" in out


def test_more_rows_can_be_selected_than_were_made_up(run):
    pytest.importorskip("datasets")
    code, out, err = run(SELECTS)
    assert code == 0, err
    assert "5000 rows, 1023 rows" in out


SELECTS = """
import torch
from datasets import load_dataset

rows = load_dataset("someone/reviews", split="train")
kept = rows.filter(lambda _, row: row > 0, with_indices=True)
print(len(rows.select(range(5000))), "rows,", len(kept), "rows")
kept.select(range(5000))
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


def test_folders_with_data_are_those_that_an_argument_names(arguments, tmp_path):
    arguments(
        "--data-dir", "/nowhere/dogs", "--output_dir=/nowhere/out", "--train_data", str(tmp_path), "--model", "/m"
    )
    assert is_named_folder("/nowhere/dogs")
    assert is_named_folder("/nowhere/dogs/train")
    for other in ("/nowhere/out", "/nowhere", tmp_path, "/m", "/nowhere/dogs/labels.csv", None):
        assert not is_named_folder(other)


def test_words_that_the_arguments_call_tokens_are_one_token(arguments):
    arguments("--initializer_token=toy", "--placeholder_token=<cat-toy>", "--prompt=dog")
    assert single_tokens() == ("ktn", "pll", "ucd", "sks", "toy")
    pytest.importorskip("tokenizers")
    from helpers.virtual_gpu.absent.tokenizer import _stand_in, trained

    trained.cache_clear()
    transformers = pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            transformers.AutoConfig, "from_pretrained", lambda *_, **__: transformers.GPT2Config(vocab_size=9000)
        )
        made = _stand_in("someone/model", {})
    assert len(made) == 9000
    assert len(made.encode("toy", add_special_tokens=False)) == 1
    assert len(made.encode("toyed", add_special_tokens=False)) < 9
    trained.cache_clear()


FOLDERS = """
import sys
from pathlib import Path

import torch
from PIL import Image

root = Path(sys.argv[2])
if not root.exists() or not root.is_dir():
    sys.exit("there is no such folder")
pictures = [Image.open(path) for path in root.iterdir() if path.is_file()]
print(len(pictures), "pictures,", Path("/nowhere/out").exists())
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script dry; return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments, options=("--fake-data",)):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        code = main(["dry-run", "--gpu", "a100-40gb", *options, "train.py", *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_folder_that_an_argument_names_has_pictures(run):
    pytest.importorskip("PIL")
    code, out, err = run(FOLDERS, "--instance_data_dir", "/nowhere/dog")
    assert code == 0, err
    assert "384 pictures, False" in out
    code, _, err = run(FOLDERS, "--instance_data_dir", "/nowhere/dog", options=())
    assert (code, "there is no such folder" in err) == (1, True)


@pytest.mark.parametrize(
    ("name", "millions"),  # as published, without the head
    [
        ("google-bert/bert-base-multilingual-cased", 177.85),
        ("sentence-transformers/all-MiniLM-L6-v2", 22.71),
        ("microsoft/mpnet-base", 109.49),
        ("xlnet/xlnet-base-cased", 116.72),
        ("facebook/dinov2-base", 86.58),
        ("facebook/hubert-base-ls960", 94.37),
        ("sshleifer/distilbart-cnn-12-6", 305.51),
        ("state-spaces/mamba-130m-hf", 129.14),
        ("openai/clip-vit-large-patch14", 427.62),
        ("google/gemma-3-1b-it", 999.89),
    ],
)
def test_models_known_by_name_have_as_many_weights_as_published(name, millions):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = known_config(name)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config)
        )
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize(
    ("name", "folder", "width", "kind"),
    [
        ("CompVis/stable-diffusion-v1-4", "text_encoder", 768, "CLIPTextModel"),
        ("stabilityai/stable-diffusion-2-1", "text_encoder", 1024, "CLIPTextModel"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "text_encoder", 768, "CLIPTextModel"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "text_encoder_2", 1280, "CLIPTextModelWithProjection"),
    ],
)
def test_each_text_encoder_of_a_diffusion_model_has_its_shape(name, folder, width, kind):
    config = known_config(name, folder)
    assert (config["hidden_size"], config["architectures"], config["dtype"]) == (width, [kind], "float32")


def test_a_model_that_someone_has_trained_further_has_the_shape_in_its_name():
    tuned, plain = known_config("NousResearch/Hermes-3-Llama-3.1-8B"), known_config("meta-llama/Llama-3.1-8B")
    assert tuned == plain
    assert known_config("someone/llama-of-mine") is None


def test_made_up_objects_and_classes_agree():
    kinds, _ = layout_of("rishitdagli/cppe-5")
    objects = value(kinds["objects"], 0)
    assert len({len(column) for column in objects.values()}) == 1
    width, height = value(kinds["image"], 0).size
    assert (value(kinds["width"], 0), value(kinds["height"], 0)) == (width, height)
    assert all(x + w <= width and y + h <= height for x, y, w, h in objects["bbox"])
    kinds, _ = layout_of("qubvel-hf/ade20k-mini")
    classes = set(value(kinds["semantic_class_to_id"], 0).values())
    assert set(value(kinds["annotation"], 5).getchannel(0).tobytes()) <= classes
    kinds, _ = layout_of("segments/sidewalk-semantic")
    assert set(value(kinds["label"], 5).tobytes()) <= classes


TRACES = """
    import sys
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(7200, 4)).cuda()
    x = torch.randn(2, 3, 32, 32).cuda()
    if sys.argv[1] == "trace":
        traced = torch.jit.trace(model, x)
    else:
        from torch.utils.tensorboard import SummaryWriter
        traced = model
        SummaryWriter("logs").add_graph(model, x)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    traced(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("kind", ["trace", "add_graph"])
def test_a_model_that_is_traced_runs_as_it_is(run, kind):
    if kind == "add_graph":
        pytest.importorskip("tensorboard")
    code, out, err = run(TRACES, kind)
    assert code == 0, err
    assert f"{kind}: not traced" in out


PROCESSES = """
import torch
from transformers import Wav2Vec2FeatureExtractor

extractor = Wav2Vec2FeatureExtractor.from_pretrained("someone/wav2vec2-base-v2")
print("rate", extractor.sampling_rate)
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


def test_a_processor_that_the_program_names_has_its_usual_settings(run):
    pytest.importorskip("transformers")
    code, out, err = run(PROCESSES, options=())
    assert code == 0, err
    assert "rate 16000" in out
    assert "Wav2Vec2FeatureExtractor with its usual settings" in out
