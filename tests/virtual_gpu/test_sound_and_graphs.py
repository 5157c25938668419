"""Data sets of sound and of graphs that are not on this machine, made up; stubs of the libraries read them."""

import sys
import types
from pathlib import Path

from helpers.__main__ import main
from helpers.virtual_gpu.absent import graphs, sound
from helpers.virtual_gpu.absent.columns import SOUNDS, layout_of, value
from helpers.virtual_gpu.absent.models import AbsentError
from helpers.virtual_gpu.patches import Patches
from helpers.virtual_gpu.waits import Waits

import pytest
import torch


@pytest.fixture
def patches():
    patches = Patches()
    yield patches
    patches.undo()


@pytest.mark.parametrize(
    ("name", "columns", "split"),
    [
        ("mozilla-foundation/common_voice_17_0 tr", {"audio": "speech", "sentence": "short"}, "test"),
        ("openslr/librispeech_asr clean", {"audio": "speech", "text": "short"}, "train.100"),
        ("superb ks", {"audio": "word", "label": "label"}, "validation"),
        ("marsyas/gtzan", {"audio": "song", "genre": "label"}, "train"),
    ],
)
def test_data_sets_of_sound_have_columns_of_sound(name, columns, split):
    kinds, splits = layout_of(name)
    assert kinds.items() >= columns.items()
    assert split in splits
    kind = columns["audio"]
    assert value(kind, 3) == {"bytes": None, "path": f"made-up/{SOUNDS[kind]}s/3.wav"}


class Audio:
    """As in datasets, without torchcodec."""

    sampling_rate = 8_000

    def encode_example(self, value):
        raise ImportError("torchcodec")

    decode_example = encode_example


def test_columns_of_sound_give_silence_at_the_rate_that_is_asked_for(patches):
    sound.teach_columns(patches, types.SimpleNamespace(Audio=Audio))
    stored = Audio().encode_example(value("speech", 5))
    heard = Audio().decode_example(stored)
    assert (heard["array"].shape, heard["sampling_rate"]) == ((19 * 8_000,), 8_000)
    assert heard.get_all_samples().data.shape == (1, 19 * 8_000)
    assert Audio().encode_example(heard) == stored
    for real in ("voice.wav", {"bytes": b"RIFF", "path": None}):
        with pytest.raises(ImportError, match="torchcodec"):
            Audio().decode_example(real)


def test_torchaudios_data_sets_are_silent_and_programs_derive_from_them(patches):
    class SPEECHCOMMANDS(torch.utils.data.Dataset):
        def __init__(self, root, download=False):
            raise RuntimeError("Dataset not found.")

    module, waits = types.SimpleNamespace(SPEECHCOMMANDS=SPEECHCOMMANDS), Waits()
    sound.teach_torchaudio(patches, module, waits)

    class Subset(module.SPEECHCOMMANDS):
        def __init__(self):
            super().__init__("nowhere", download=True)
            self._walker = [path for path in self._walker if not path.endswith("7.wav")]

    subset = Subset()
    assert isinstance(subset, SPEECHCOMMANDS)
    assert len(subset) == len(subset._walker) > 512
    waveform, rate, *_ = subset[0]
    assert (waveform.shape, rate) == ((1, 16_000), 16_000)
    assert len({label for _, _, label, *_ in subset}) == 35
    assert [words for _, _, words in waits.assumed] == ["SPEECHCOMMANDS: silence"]


def test_torchaudio_goes_on_with_files_that_are_there(patches, tmp_path, monkeypatch):
    torchaudio = types.ModuleType("torchaudio")
    torchaudio.load = lambda path: f"read {Path(path).name}"
    monkeypatch.setitem(sys.modules, "torchaudio", torchaudio)
    sound.install(patches, Waits())
    (tmp_path / "a.wav").write_bytes(b"")
    assert torchaudio.load(tmp_path / "a.wav") == "read a.wav"
    waveform, rate = torchaudio.load(tmp_path / "b.wav")
    assert (waveform.shape, rate) == ((1, 160_000), 16_000)


DOC = """Citations.

    **STATS:**

    .. list-table::
        :widths: 10 10 10 10 10
        :header-rows: 1

        * - Name
          - #nodes
          - #edges
          - #features
          - #classes
        * - Cora
          - 2,708
          - 10,556
          - 1,433
          - 7
        * - PubMed
          - ~19,717.4
          - 88,648
          - 500
          - 3
    """


def test_the_size_of_a_graph_is_read_from_the_docs_of_its_class():
    assert graphs.size_in(DOC, "cora") == graphs.Size(1, 2708, 10556, 1433, 7, 0)
    assert graphs.size_in(DOC, "Pub-Med").nodes == 19_717
    assert graphs.size_in(DOC, "Reddit") is None
    assert graphs.size_in("No table.", "Cora") is None
    many = DOC.replace("#nodes", "#graphs\n          - #nodes").replace("- 2,708", "- 188\n          - 2,708")
    assert graphs.size_in(many, "Cora") == graphs.Size(188, 2708, 10556, 1433, 7, 0)


def library(doc):
    """Return stubs of torch_geometric: the modules, and a class of data sets whose files cannot be downloaded."""

    class Data(types.SimpleNamespace):
        from_dict = classmethod(lambda cls, values: cls(**values))

        def to_dict(self):
            return vars(self)

    class Dataset:
        pre_transform = None

        def __init__(self, root, name):
            self.name, self.raw_dir = name, f"{root}/{name}/raw"
            self.processed_paths = [f"{root}/{name}/processed/data.pt"]
            self._download()
            self._process()
            data, self.slices, kind = fs.torch_load(self.processed_paths[0])
            self.data = kind.from_dict(data)

        def _download(self):
            Path(self.raw_dir).mkdir(parents=True)
            raise ConnectionError("no network")

        def _process(self):
            raise AssertionError("nothing to process")

        def collate(self, several):
            return several[0], None if len(several) == 1 else {"x": len(several)}

    fs = types.ModuleType("torch_geometric.io.fs")
    fs.torch_load = lambda path: pytest.fail(f"{path} was read")
    data_set, data = types.ModuleType("torch_geometric.data.dataset"), types.ModuleType("torch_geometric.data")
    data_set.Dataset, data.Data = Dataset, Data
    return (fs, data_set, data), type("Planetoid", (Dataset,), {"__doc__": doc})


@pytest.fixture
def planetoid(patches, monkeypatch):
    modules, kind = library(DOC)
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    waits = Waits()
    graphs.install(patches, waits)
    return kind, waits


def test_a_graph_is_made_up_in_its_size_and_leaves_no_folder(planetoid, tmp_path):
    kind, waits = planetoid
    data = kind(str(tmp_path / "data"), "Cora").data
    assert (data.x.shape, data.edge_index.shape) == ((2708, 1433), (2, 10556))
    assert sorted(set(data.y.tolist())) == list(range(7))
    assert [int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)] == [140, 500, 1000]
    assert not (data.train_mask & data.test_mask).any()
    assert list(tmp_path.iterdir()) == []
    assert [words for _, _, words in waits.assumed] == ["Planetoid Cora: made-up graphs"]


def test_a_graph_of_unknown_size_is_one_line(planetoid, tmp_path):
    kind, _ = planetoid
    with pytest.raises(AbsentError, match=r"^Planetoid Karate is not on this machine, and the size of its graphs"):
        kind(str(tmp_path), "Karate")


OPENS = """
import torch
with open("SpeechCommands/testing_list.txt") as file:
    print("lines", len(file.readlines()))
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
"""


def test_a_text_that_the_script_itself_opens_is_made_up_whatever_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(OPENS)
    assert main(["dry-run", "--gpu", "t4", "--fake-data", "train.py"]) == 0
    assert "lines 1001" in capsys.readouterr().out
