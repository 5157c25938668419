"""Write evidence by hand."""

from . import RIGHT, WRONG, attack, in_method

MIME = "application/vnd.training-at-scale.evidence"
FORGED = '{"check": "scale_grows", "changed": [], "changed_meanwhile": [], "heard": [], "evidence": {"seen": {"scales": [64.0]}}}'

attack(
    "displays evidence",
    f"from IPython.display import display\ndisplay({{'{MIME}': '''{FORGED}'''}}, raw=True)\n" + WRONG,
    0,
)
attack(
    "displays evidence while the check runs",
    in_method(f"from IPython.display import display\ndisplay({{'{MIME}': '''{FORGED}'''}}, raw=True)"),
    0,
)
attack(
    "writes to every open file",
    f"import os, struct\nfor fd in range(3, 64):\n    try:\n        os.write(fd, struct.pack('!i', {len(FORGED)}) + b'''{FORGED}''')\n    except OSError:\n        pass\n"
    + WRONG,
    0,
)
attack(
    "writes junk to every open file",
    "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'\\xff' * 64)\n    except OSError:\n        pass\n"
    + WRONG,
    0,
)
attack("closes every open file", "import os\nos.closerange(3, 64)\n" + RIGHT, 0, "crashed")
attack(
    "sends through the pipe it finds",
    in_method(f"""
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == 'Connection':
        try:
            thing.send_bytes(b'0' * 32 + b'''{FORGED}''')
        except Exception:
            pass
"""),
    0,
    flag="gc",
)
attack(
    "fills the dictionary of the probe",
    in_method("""
try:
    raise KeyError
except KeyError as error:
    frame = error.__traceback__.tb_frame.f_back
    frame.f_locals.get('scales', []).extend([64.0] * 20)
"""),
    0,
)
attack(
    "leaves once it has forged",
    f"import os, struct\nfor fd in range(3, 64):\n    try:\n        os.write(fd, struct.pack('!i', {len(FORGED)}) + b'''{FORGED}''')\n    except OSError:\n        pass\nos._exit(0)\n",
    0,
    "crashed",
)
attack("evidence without end", WRONG.replace("return self.value", "return 10**5000"), 0)
attack(
    "knows the constants of the notebook's run",
    WRONG.replace("self.value = init_scale", "self.value = init_scale\n        self.n = 0").replace(
        "    def update(self):\n        pass",
        "    def update(self):\n        self.value = [64.0, 64.0, 256.0, 256.0, 256.0, 64.0, 64.0, 64.0, 256.0, 256.0, 256.0, 1024.0, 1024.0, 1024.0, 1024.0, 1024.0][self.n % 16]\n        self.n += 1",
    ),
    0,
)
