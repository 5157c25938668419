"""What is not on this machine: models are built without weights, data is made up where that is asked for."""

import json
import types

from helpers.__main__ import main
from helpers.virtual_gpu.absent import diffusion, images, processors, tokenizer
from helpers.virtual_gpu.absent.columns import CHATS, layout_of, value
from helpers.virtual_gpu.absent.models import known_config
from helpers.virtual_gpu.patches import Patches
from helpers.virtual_gpu.waits import Waits

import numpy as np
import pytest

TRAINS = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, device_map={"": 0})
ids = tokenizer("Every step takes memory, and gives it back.", return_tensors="pt").to("cuda")
print("tokens", len(tokenizer), ids["input_ids"].shape[1], int(ids["input_ids"].max()) < len(tokenizer))
print("text", tokenizer.decode(ids["input_ids"][0], skip_special_tokens=True))
tied = model.lm_head.weight is model.get_input_embeddings().weight
print("model", model.dtype, sum(p.numel() for p in model.parameters()), tied)
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(**ids, labels=ids["input_ids"]).loss.backward()
optimizer.step()
model.save_pretrained("nowhere")
open("nowhere/state.json", "w").close()
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script dry, offline; return (exit code, stdout, stderr)."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments, options=()):
        (tmp_path / "train.py").write_text(text)
        code = main(["dry-run", "--gpu", "a100-40gb", *options, "train.py", *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_a_model_that_is_known_by_name_is_built(run, tmp_path):
    code, out, err = run(TRAINS, "openai-community/gpt2")
    assert code == 0, err
    assert "tokens 50257" in out
    assert "True\ntext Every step takes memory, and gives it back." in out
    assert "model torch.float32 124439808 True" in out
    assert "gpt2: built without its weights" in out
    assert [path.name for path in (tmp_path / "nowhere").iterdir()] == ["state.json"]


@pytest.mark.slow
def test_a_folder_with_a_config_and_no_weights_is_enough(run, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"vocab_size": 1000, "dtype": "bfloat16", "tie_word_embeddings": False}
    (tmp_path / "mine").mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, **more}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    code, out, err = run(TRAINS, "./mine")
    assert code == 0, err
    assert "tokens 1000" in out
    weights = 2 * 1000 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    assert f"model torch.bfloat16 {weights} False" in out


@pytest.mark.slow
def test_a_model_that_is_not_known_is_one_clear_line(run):
    code, _, err = run(TRAINS, "someone/something")
    assert code == 2
    assert "someone/something is not on this machine, and its shape is not known" in err
    assert "Traceback" not in err


READS = """
import importlib.metadata, pathlib
import numpy as np, torch
data = np.memmap("data/train.bin", dtype=np.uint16, mode="r")
x = torch.from_numpy(data[:512].astype(np.int64)).cuda()
text = open("input.txt").read()
assert pathlib.Path("input.txt").read_text() == text
assert importlib.metadata.distribution("numpy").read_text("nothing.txt") is None  # which Python looks for by itself
model = torch.nn.Embedding(256, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(x).sum().backward()
optimizer.step()
open("out.txt", "w").write("written")
"""


def test_files_are_made_up_on_request_alone(run, tmp_path):
    code, out, err = run(READS, options=("--fake-data",))
    assert code == 0, err
    assert "train.bin: an array of made-up numbers" in out
    assert "input.txt: made-up text" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "train.py"]
    assert np.memmap.__module__ == "numpy"
    code, _, err = run(READS)
    assert code == 1
    assert "FileNotFoundError" in err


@pytest.mark.parametrize(
    ("name", "model_type", "dtype"),
    [
        ("openai-community/gpt2", "gpt2", "float32"),
        ("meta-llama/Llama-2-7b-hf", "llama", "float16"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama", "bfloat16"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2", "bfloat16"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama", "bfloat16"),
        ("google-bert/bert-base-uncased", "bert", "float32"),
        ("google-t5/t5-small", "t5", "float32"),
    ],
)
def test_names_are_known_with_their_owners_and_endings(name, model_type, dtype):
    found = known_config(name)
    assert (found["model_type"], found["dtype"]) == (model_type, dtype)
    assert found["architectures"]
    assert known_config("someone/something") is None


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("wikitext wikitext-2-raw-v1", {"text"}),
        ("trl-lib/Capybara", {"messages"}),
        ("glue mrpc", {"sentence1", "sentence2", "label", "idx"}),
        ("yahma/alpaca-cleaned", {"instruction", "input", "output", "text"}),
        ("trl-lib/ultrafeedback_binarized", {"chosen", "rejected"}),
        ("HuggingFaceH4/ultrafeedback_binarized", {"prompt", "chosen", "rejected", "messages"}),
    ],
)
def test_data_sets_have_their_own_columns(name, columns):
    kinds, splits = layout_of(name)
    assert set(kinds) == columns
    assert "train" in splits
    for kind in kinds.values():
        made = value(kind, 3)
        if kind in CHATS:
            assert [message["role"] for message in made] == list(CHATS[kind])


@pytest.mark.parametrize("by_keyword", [False, True])
@pytest.mark.parametrize(
    "teach",
    [
        lambda patches, owner: tokenizer._auto(patches, owner, Waits()),
        lambda patches, owner: processors._teach(patches, owner, lambda cls, name: None, Waits()),
        lambda patches, owner: diffusion._built(patches, owner, Waits(), "weights"),
    ],
    ids=["tokenizer", "processor", "diffusion"],
)
def test_a_name_is_passed_by_position_or_by_the_keyword_of_the_libraries(teach, by_keyword):
    class Owner:
        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
            return pretrained_model_name_or_path, kwargs

    patches = Patches()
    teach(patches, Owner)
    try:
        if by_keyword:
            found = Owner.from_pretrained(revision="main", pretrained_model_name_or_path="a/model")
        else:
            found = Owner.from_pretrained("a/model", revision="main")
    finally:
        patches.undo()
    assert found == ("a/model", {"revision": "main"})


def test_data_sets_are_made_up():
    datasets = pytest.importorskip("datasets")
    from helpers.virtual_gpu.absent.data import made_up

    whole = made_up("imdb", None, False)
    assert isinstance(whole, datasets.DatasetDict)
    assert len(made_up("imdb", "train[:10%]", False)) == len(whole["train"]) // 10
    streamed = made_up("allenai/c4 en", None, True)
    assert streamed["train"].num_shards == 32
    assert sum(1 for _ in streamed["train"].take(len(whole["train"]) + 1)) == len(whole["train"]) + 1
    assert sum(1 for _ in streamed["validation"]) == len(whole["test"])


def test_files_of_vocabularies_are_made_up(run):
    pytest.importorskip("tiktoken")
    code, out, err = run("""
import tiktoken, torch
from tiktoken.load import load_tiktoken_bpe

ranks = load_tiktoken_bpe("/nowhere/tokenizer.model")
coder = tiktoken.Encoding("made", pat_str=r"\\w+|\\W", mergeable_ranks=ranks, special_tokens={})
ids = coder.encode("Every step takes memory.")
print("coded", len(ranks), len(ids) < 20, coder.decode(ids))
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
""")
    assert code == 0, err
    assert "coded 128000 True Every step takes memory." in out
    assert "tokenizer.model: one with the vocabulary's size" in out


def test_clip_is_the_text_encoder_of_stable_diffusion():
    config = known_config("CompVis/stable-diffusion-v1-4", "text_encoder")
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("clip_text_model", 768, 12)
    assert known_config("CompVis/stable-diffusion-v1-4") is None


def test_a_made_up_score_is_a_fraction():
    kinds, splits = layout_of("sentence-transformers/stsb")
    assert [0 <= value(kinds["score"], row) <= 1 for row in range(9)] == [True] * 9
    assert "validation" in splits


def test_one_row_of_eight_is_short_enough_for_every_filter():
    lengths = [len(value("text", row).split()) for row in range(16)]
    assert [length < 100 for length in lengths] == ([False] * 7 + [True]) * 2


def test_made_up_images_are_an_array_where_the_data_set_has_one():
    from helpers.virtual_gpu.absent.images import MadeUpImages

    gray, colored = MadeUpImages((28, 1, 10)), MadeUpImages((32, 3, 10))
    assert gray.data.shape == (len(gray), 28, 28)
    assert gray.data[gray.targets == 3].shape[0] > 100
    assert colored.data.shape == (len(colored), 32, 32, 3)
    assert colored.targets[3] == 3


def test_made_up_images_are_as_many_as_the_data_set_has():
    class CIFAR10:
        def __init__(self, root, train=True, transform=None):
            raise RuntimeError("Dataset not found or corrupted.")

    module = types.SimpleNamespace(**dict.fromkeys(images.SHAPES, CIFAR10))
    images.teach_torchvision(Patches(), module, Waits())
    found = module.CIFAR10("nowhere", transform=lambda image: image.size)
    assert len(found) == 50_000  # scripts split them by these numbers
    assert found[49_999] == ((32, 32), 9)


LOOKS = """
import glob, io, json, os
from pathlib import Path

import numpy as np, torch
from PIL import Image

assert os.path.exists("data/wikitext-2/train.txt") and not os.path.exists("checkpoints/latest.txt")
lines = io.open("data/wikitext-2/train.txt").readlines()
rows = json.load(open("alpaca_data.json"))
shards = sorted(name for name in os.listdir("edu_fineweb10B") if "train" in name and name.endswith(".npy"))
tokens = np.load(os.path.join("edu_fineweb10B", shards[0]))
pictures = [path for ending in ("jpg", "png") for path in Path("flowers").glob(f"**/*.{ending}")]
images = [Image.open(path) for path in pictures[:2]]
(bin,) = glob.glob("fineweb/fineweb_train_*.bin")[:1]
header = np.frombuffer(open(bin, "rb").read(12), dtype=np.int32)
print("found", len(lines), sorted(rows[0]), len(shards), tokens.dtype, images[0].size, header.tolist())
print("own", glob.glob("*.py"), os.path.exists("out.txt"), glob.glob("nothing_*.pt"))
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
"""


def test_folders_and_files_of_data_are_found_on_request_alone(run, tmp_path):
    code, out, err = run(LOOKS, options=("--fake-data",))
    assert code == 0, err
    assert "found 1001 ['input', 'instruction', 'output', 'text'] 2 uint16 (256, 256) [20240520, 1, 1048576]" in out
    assert "own ['train.py'] False []" in out
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    code, _, err = run(LOOKS)
    assert code == 1
    assert "AssertionError" in err
