"""What is made up besides models and rows: downloads, annotations, checkpoint folders, a package for CUDA alone."""

import io
import json
import sys
import types
from pathlib import Path

from helpers.__main__ import main
from helpers.virtual_gpu.absent import annotations, checkpoints, folders, tables, weights
from helpers.virtual_gpu.absent.columns import languages_of, layout_of, value
from helpers.virtual_gpu.absent.folders import content_of
from helpers.virtual_gpu.absent.models import AbsentError, known_config
from helpers.virtual_gpu.patches import Patches
from helpers.virtual_gpu.waits import Waits

import pytest

STEP = """
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script dry; return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(text, *options):
        (tmp_path / "train.py").write_text(text + STEP)
        code = main(["dry-run", "--gpu", "a100-40gb", *options, "train.py"])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def patches():
    patches = Patches()
    yield patches
    patches.undo()


DOWNLOADS = """
import json, os, urllib.request, torch

def fetched(url, name):
    if not os.path.exists(name):
        with urllib.request.urlopen(url) as response:
            text = response.read().decode()
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    assert os.path.exists(name)
    return open(name, encoding="utf-8").read()

text = fetched("http://127.0.0.1:9/books/145.txt?raw", "book.txt")
assert fetched("http://127.0.0.1:9/books/145.txt?raw", "book.txt") == text
urllib.request.urlretrieve("http://127.0.0.1:9/alpaca_data.json", "rows.json")
print("fetched", len(text) > 10_000, sorted(json.load(open("rows.json"))[0]))
open("own.csv", "w").write("written")
"""


def test_what_a_program_saves_of_a_made_up_download_stays_in_memory(run, tmp_path):
    code, out, err = run(DOWNLOADS, "--fake-data")
    assert code == 0, err
    assert "fetched True ['input', 'instruction', 'output', 'text']" in out
    assert "http://127.0.0.1:9/books/145.txt?raw: made-up text" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.csv", "train.py"]
    code, _, err = run(DOWNLOADS)
    assert code == 1
    assert "URLError" in err


TABLES = """
import gzip, json, os, torch
import numpy as np
from pathlib import Path

pairs = np.loadtxt("data/ml-1m.txt", dtype=np.int32)
first, fourth = np.loadtxt("points.dat", usecols=(0, 3), unpack=True, skiprows=2)
features = np.genfromtxt("pima.csv", delimiter=",", skip_header=1)
named = np.loadtxt("records.txt", dtype=[("a", "i4"), ("b", "f4"), ("c", "f4")])
print("tables", pairs.shape, pairs.dtype, first.shape, sorted(set(fourth.tolist())), features.shape, named.dtype.names)
with gzip.open("data/enwik8.gz") as file:
    text = np.frombuffer(file.read(int(95e6)), dtype=np.uint8)
rows = [json.loads(line) for line in gzip.open("train.jsonl.gz", "rt")]
images = np.frombuffer(gzip.open("train-images-idx3-ubyte.gz").read(), np.uint8, offset=16).reshape(-1, 28, 28)
labels = open("t10k-labels-idx1-ubyte", "rb").read()[8:]
print("gzip", len(text), len(rows), sorted(rows[0]), images.shape, len(labels), max(labels))
print("found", os.path.exists("train.jsonl.gz"), os.path.exists("out.jsonl.gz"), np.fromfile("x.bin", "i2", 9).shape)
print("pictures", len(list(Path("flowers").glob("**/*.jpg"))) >= 100)
np.savetxt("own.txt", np.ones((3, 2)))
with gzip.open("own.gz", "wt") as file:
    file.write("own")
print("own", np.loadtxt("own.txt").shape, gzip.open("own.gz").read())
"""


def test_tables_and_compressed_files_are_made_up(run):
    code, out, err = run(TABLES, "--fake-data")
    assert code == 0, err
    assert "tables (1024, 2) int32 (1024,) [0.0, 1.0] (1024, 9) ('a', 'b', 'c')" in out
    assert "gzip 95000000 1024 ['text'] (60000, 28, 28) 10000 9" in out
    assert "found True False (9,)" in out
    assert "pictures True" in out
    assert "own (3, 2) b'own'" in out
    assert "ml-1m.txt: made-up numbers" in out
    code, _, err = run(TABLES)
    assert code == 1
    assert "FileNotFoundError" in err


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        ({"sep": "::", "names": ["u", "i", "r"], "engine": "python"}, ["u", "i", "r"]),
        ({"usecols": ["a", "b"]}, ["a", "b"]),
        ({"header": None}, list(range(9))),
        ({}, ["text", "label"]),
    ],
)
def test_pandas_finds_the_columns_that_it_asks_for(asked, columns):
    pandas = pytest.importorskip("pandas")
    made = pandas.read_csv(io.BytesIO(tables._rows(Path("imdb.csv"), ".csv", asked)), **asked)
    assert list(made.columns) == columns
    assert len(made) == 1024


def test_a_series_has_the_rows_by_which_programs_split_it():
    lines = tables._rows(Path("data/ETTh1.csv"), ".csv", {}).decode().splitlines()
    assert (lines[0], len(lines)) == ("date,0,1,2,3,4,5,OT", 17_421)
    assert lines[25].startswith("2016-07-02 00:00:00,0.0,")


def test_encoders_of_segmentation_models_are_built_without_their_weights(patches, monkeypatch):
    def get_encoder(name, in_channels=3, depth=5, weights=None, **_):
        return name, in_channels, depth, weights

    waits, module = Waits(), types.SimpleNamespace(get_encoder=get_encoder)
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch.encoders", module)
    weights.install(patches, waits)
    assert module.get_encoder("resnet34", 4, weights="imagenet") == ("resnet34", 4, 5, None)
    assert module.get_encoder("resnet18", 3, 4, None) == ("resnet18", 3, 4, None)
    assert [words for _, _, words in waits.assumed] == ["resnet34: built without its weights"]


def test_opencv_finds_pictures(patches, monkeypatch):
    waits, opencv = Waits(), types.SimpleNamespace(imread=lambda name, flags=1: None)
    monkeypatch.setitem(sys.modules, "cv2", opencv)
    folders.install(patches, waits)
    assert opencv.imread("nowhere/a.png").shape == (256, 256, 3)
    assert opencv.imread("nowhere/a.png", 0).shape == (256, 256)
    assert opencv.imread(__file__) is None  # it is there, and no picture
    assert {words for _, _, words in waits.assumed} == {"nowhere: gray images"}


def test_a_hub_that_cannot_be_reached_has_no_models(run, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("torch.hub._get_cache_or_reload", unreachable)
    code, out, err = run("import torch\nprint('models', torch.hub.list('someone/something:main'))\n")
    assert code == 0, err
    assert "models []" in out
    assert "someone/something:main: cannot be reached" in out
    code, _, err = run("import torch\nmodel = torch.hub.load('someone/something', 'small')\n")
    assert code == 2
    assert err.strip().endswith("clone it, and pass its folder with source='local'.")
    assert "Traceback" not in err


FLASH = """
import torch
from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.ops.triton.layer_norm import layer_norm_fn

options = {"device": "cuda", "dtype": torch.bfloat16}
x = torch.randn(2, 128, 64, **options)
layer, scale = torch.nn.Linear(64, 192, **options), torch.ones(64, **options)
cos = sin = torch.randn(128, 8, **options)
q, k, v = layer(layer_norm_fn(x, scale, None, is_rms_norm=True)).view(2, 128, 3, 4, 16).unbind(2)
before = torch.cuda.memory_allocated()
out = flash_attn_func(apply_rotary_emb(q, cos, sin), k, v, causal=True)
print("flash", tuple(out.shape), torch.cuda.memory_allocated() - before)
packed = [part.flatten(0, 1) for part in (q, k, v)]
print("packed", tuple(flash_attn_varlen_func(*packed, None, None, 128, 128, causal=True).shape))
out.sum().backward()
"""


def test_flash_attention_saves_what_its_kernels_save(run):
    code, out, err = run(FLASH)
    assert code == 0, err
    tokens, width, heads = 2 * 128, 64, 4
    rotated, result, statistics, random = 2 * tokens * width, 2 * tokens * width, 4 * tokens * heads, 2 * 512
    assert f"flash (2, 128, 4, 16) {rotated + result + statistics + random}" in out
    assert "packed (256, 4, 16)" in out
    assert "flash_attn: PyTorch's flash attention" in out
    assert not {name for name in sys.modules if name.startswith("flash_attn")}


def test_two_changes_may_wait_for_the_same_module(patches, tmp_path, monkeypatch):
    (tmp_path / "waited_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    seen = []
    for name in ("first", "second"):
        patches.after_import("waited_for", lambda _, module, name=name: seen.append((name, module.value)))
    import waited_for

    assert sorted(seen) == [("first", 1), ("second", 1)]
    assert waited_for.__loader__ is waited_for.__spec__.loader
    assert type(waited_for.__loader__).__name__ == "SourceFileLoader"


def test_annotations_go_with_their_pictures():
    made = annotations.coco("annotations/instances_train2017.json")
    assert len({category["id"] for category in made["categories"]}) == 80
    sizes = {image["id"]: (image["width"], image["height"]) for image in made["images"]}
    assert {annotations.size_of(image["file_name"]) for image in made["images"]} == {(640, 480), (480, 640)}
    for thing in made["annotations"]:
        (x, y, width, height), (w, h) = thing["bbox"], sizes[thing["image_id"]]
        assert min(x, y) >= 0
        assert x + width <= w
        assert y + height <= h
        assert thing["area"] == width * height
    assert len(annotations.coco("person_keypoints_val2017.json")["images"]) < len(made["images"])
    assert annotations.size_of("train_000001.jpg") is None


def test_cocos_api_finds_made_up_annotations(patches):
    class COCO:
        def __init__(self, file=None):
            self.dataset = json.loads(Path(file).read_text()) if file else {}

        def createIndex(self):
            self.found = len(self.dataset["images"])

    waits = Waits()
    annotations._teach_coco(patches, types.SimpleNamespace(COCO=COCO), waits)
    assert COCO("/nowhere/instances_val2017.json").found == annotations.FEW
    assert [what for _, what, _ in waits.assumed] == ["data set"]


def test_a_folder_of_litgpts_may_be_absent(patches):
    class Config:
        @classmethod
        def from_file(cls, path, **options):
            raise FileNotFoundError(path)

        @classmethod
        def from_name(cls, name, **options):
            if name != "pythia-160m":
                raise ValueError(name)
            return {"name": name, **options}

    checkpoints._litgpt_configs(patches, Config, Waits())
    folder = Path("checkpoints/EleutherAI")
    assert Config.from_file(folder / "pythia-160m" / "model_config.yaml", r=8) == {"name": "pythia-160m", "r": 8}
    with pytest.raises(AbsentError, match="litgpt has no model mine"):
        Config.from_file(folder / "mine" / "model_config.yaml")


def test_nanochats_tokenizer_is_made_up(patches):
    pytest.importorskip("tokenizers")

    class Tokenizer:
        def __init__(self, coder, bos):
            self.coder, self.bos = coder, bos

        @classmethod
        def from_directory(cls, folder):
            raise FileNotFoundError(folder)

    def get_token_bytes(device="cpu"):
        raise AssertionError("not found")

    module = types.SimpleNamespace(
        RustBPETokenizer=Tokenizer,
        get_token_bytes=get_token_bytes,
        SPECIAL_TOKENS=["<|bos|>", "<|user_start|>"],
        SPLIT_PATTERN="",
        tiktoken=types.SimpleNamespace(Encoding=lambda **named: named),
    )
    checkpoints._nanochat(patches, module, Waits())
    made = Tokenizer.from_directory("nowhere")
    assert len(made.coder["mergeable_ranks"]) + len(made.coder["special_tokens"]) == 2**15
    lengths = module.get_token_bytes()
    assert lengths.shape == (2**15,)
    assert lengths[-2:].tolist() == [0, 0]
    assert lengths[:256].tolist() == [1] * 256


def test_translations_are_in_the_languages_of_the_name():
    assert languages_of("wmt16 ro-en") == ("ro", "en")
    (column,) = layout_of("wmt16 ro-en")[0].values()
    assert set(value(column, 0, languages_of("wmt16 ro-en"))) == {"ro", "en"}


def test_parquet_files_are_made_up():
    parquet = pytest.importorskip("pyarrow.parquet")
    import io

    file = parquet.ParquetFile(io.BytesIO(content_of(Path("train_000000.parquet"))))
    assert file.num_row_groups == 8
    assert file.schema_arrow.names == ["text"]


@pytest.mark.parametrize(
    ("name", "model_type", "sizes"),
    [
        ("facebook/bart-base", "bart", {"d_model": 768, "decoder_layers": 6}),
        ("openai/whisper-small", "whisper", {"d_model": 768, "encoder_ffn_dim": 3072}),
        ("microsoft/deberta-v3-base", "deberta-v2", {"vocab_size": 128100, "hidden_size": 768}),
        ("FacebookAI/xlm-roberta-base", "xlm-roberta", {"vocab_size": 250002, "num_hidden_layers": 12}),
        ("Helsinki-NLP/opus-mt-en-ro", "marian", {"vocab_size": 59543, "d_model": 512}),
        ("HuggingFaceTB/SmolLM-360M", "llama", {"hidden_size": 960, "num_key_value_heads": 5}),
    ],
)
def test_more_models_are_known_by_name(name, model_type, sizes):
    found = known_config(name)
    assert found["model_type"] == model_type
    assert {key: found[key] for key in sizes} == sizes


SAVES = """
import torch
from pathlib import Path
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
own = PreTrainedTokenizerFast(tokenizer_object=words)
own.save_pretrained("own")
AutoTokenizer.from_pretrained("openai-community/gpt2").save_pretrained("stand_in")
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
own.save_pretrained("late")
print("written:", *(path.parent.name for path in Path().glob("*/tokenizer.json")))
"""


def test_a_tokenizer_that_the_script_makes_is_written_before_it_trains(run):
    pytest.importorskip("tokenizers")
    code, out, err = run(SAVES)
    assert code == 0, err
    assert "written: own\n" in out
