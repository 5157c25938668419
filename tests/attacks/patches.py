"""Put something else in the place of what a check uses."""

from . import RIGHT, WRONG, attack, in_method

attack(
    "patches assert_close",
    "import torch\ntorch.testing.assert_close = lambda *a, **k: None\n" + WRONG,
    0,
    flag="assert_close",
)
attack(
    "patches the probe",
    "from helpers.exercises import x1\nx1.ScaleGrows.probe = staticmethod(lambda seed, c: {'scales': []})\n" + WRONG,
    0,
    flag="ScaleGrows.probe",
)
attack(
    "patches the runner",
    "from helpers.exercises import run\nrun.probe = lambda *a: {'seen': {}}\n" + WRONG,
    0,
    flag="helpers.exercises.run.probe",
)
attack(
    "patches the judge",
    "from helpers.exercises import x1\nfor c in (x1.ScaleGrows, x1.GradientIsUnscaled):\n    c.judge = staticmethod(lambda *a: None)\n"
    + WRONG,
    0,
    flag="judge",
)
attack("patches json", "import json\njson.dumps = lambda *a, **k: '{}'\n" + WRONG, 0, flag="json.dumps")
attack(
    "patches builtins",
    "import builtins\nbuiltins.float = lambda *a: 64.0\nbuiltins.abs = lambda *a: 0\n" + WRONG,
    0,
    flag="builtins.float",
)
attack("patches norm", "import torch\ntorch.Tensor.norm = lambda self, *a: torch.tensor(1.0)\n" + WRONG, 0, flag="norm")
attack(
    "patches the optimizer", "import torch\ntorch.optim.SGD.step = lambda self, *a: None\n" + WRONG, 0, flag="SGD.step"
)
attack(
    "swaps a function's body",
    "from helpers.exercises import x1\nx1._toy.__code__ = (lambda *a, **k: 1 / 0).__code__\n" + RIGHT,
    3,
    flag="body",
)
attack(
    "swaps a module",
    "import sys, types\nsys.modules['helpers.exercises.run'] = types.ModuleType('x')\n" + RIGHT,
    3,
    flag="sys.modules",
)
attack(
    "empties sys.modules",
    "import sys\nfor name in [n for n in sys.modules if n.startswith('helpers')]:\n    del sys.modules[name]\n" + RIGHT,
    3,
    flag="sys.modules",
)
attack(
    "patches while the check runs",
    in_method("from helpers.exercises import x1\nx1._weights = lambda model: __import__('torch').zeros(3)"),
    0,
    "needs review",
    "_weights",
)
attack(
    "patches isinstance meanwhile, right otherwise",
    in_method("import builtins\nbuiltins.sorted = lambda *a, **k: []", RIGHT),
    0,
    "needs review",
    "sorted",
)
attack(
    "transforms later cells",
    "get_ipython().input_transformers_post.append(lambda lines: ['print(10)\\n'])\n" + WRONG,
    0,
)
attack("hooks cells", "get_ipython().events.register('pre_run_cell', lambda *a: 1 / 0)\n" + RIGHT, 3)
attack("overrides display", "import IPython.display\nIPython.display.display = lambda *a, **k: None\n" + RIGHT, 3)
attack(
    "replaces the random generator",
    "import random\nrandom.Random = lambda seed: __import__('types').SimpleNamespace(shuffle=lambda x: None)\n" + WRONG,
    0,
    flag="Random",
)
attack(
    "an import hook",
    "import sys\nclass F:\n    def find_spec(self, *a):\n        raise ImportError\nsys.meta_path.insert(0, F())\n"
    + RIGHT,
    3,
)
attack(
    "a metaclass that says yes",
    "class Yes(type):\n    def __eq__(cls, other):\n        return True\n    __hash__ = type.__hash__\n"
    + WRONG.replace("class DynamicLossScaler:", "class DynamicLossScaler(metaclass=Yes):"),
    0,
)
attack(
    "numbers that equal everything",
    "class All(float):\n    __eq__ = __le__ = __ge__ = lambda *a: True\n    __hash__ = float.__hash__\n"
    + WRONG.replace("return self.value", "return All(3)"),
    0,
)
attack("NaN for a scale", WRONG.replace("return self.value", "return float('nan')"), 0)
attack("a scale that cannot be written down", WRONG.replace("return self.value", "return object()"), 0)
attack(
    "raises something that cannot be printed",
    "class E(Exception):\n    def __str__(self):\n        raise ValueError\n" + in_method("raise E()"),
    0,
)
attack("raises from outside Exception", in_method("class B(BaseException): pass\nraise B()"), 0, "crashed")
attack("magics", "%matplotlib inline\n%config InlineBackend.figure_format = 'svg'\n" + RIGHT, 3)
attack("a cell magic that skips", "%%script false\n" + RIGHT, 0)
attack("orders to nbval", "# NBVAL_SKIP\n" + RIGHT, 3)
attack("a name for another cell", RIGHT + "\n# cell: step\ncollect = check = print\n", 3)
attack("exits at the end", RIGHT + "\nraise SystemExit(0)\n", 3)
attack("an error after the answer", RIGHT + "\n1 / 0\n", 3)
attack("does not parse", RIGHT + "\ndef (:\n", 0)
