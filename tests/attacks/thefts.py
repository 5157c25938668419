"""Read what is not theirs; write where they must not."""

from . import RIGHT, WRONG, attack

# If the first answer can be stolen, what runs is the reference.
attack("imports the reference", "from helpers.exercises.reference.x1 import DynamicLossScaler\n", 0)
attack(
    "asks the course for its sources",
    "from helpers.course.grade.collect import reference_hand_in\nfrom helpers.course.source import sources\nexec(reference_hand_in([s for s in sources() if s.exercise == 'x1'][0]).answers['scaler'])\n",
    0,
)
attack(
    "searches the disk for the solution",
    """
import pathlib
found = ""
for root in ("/course", "/home", "/root", "/tmp", "/work", "/srv", "/opt", "/mnt", "/var", "/check"):
    for path in pathlib.Path(root).rglob("*x1*"):
        try:
            text = path.read_text()
        except (OSError, ValueError):
            continue
        if "class DynamicLossScaler" in text and path.suffix == ".py":
            found = text
exec(found)
""",
    0,
)
attack(
    "asks its parents' memory",
    "import os, pathlib\ntext = ''\nfor pid in [p for p in os.listdir('/proc') if p.isdigit()]:\n    text += pathlib.Path(f'/proc/{pid}/cmdline').read_text()\nassert 'solutions' in text and 'hand-ins' in text\n"
    + RIGHT,
    0,
)
attack("reads the environment", "import os\nassert os.environ['CANARY'] == 'sings'\n" + RIGHT, 0)
attack("calls home", "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=2).close()\n" + RIGHT, 0)
attack(
    "removes the canary",
    "import os\nfor path in ({canary!r}, '/course/helpers/__init__.py'):\n    try:\n        os.remove(path)\n    except OSError:\n        pass\n"
    + RIGHT,
    3,
    flag="os",
)
attack(
    "removes all there is",
    "import shutil\nfor path in ('/course', '/home', '/root', '/tmp', {folder!r}):\n    shutil.rmtree(path, ignore_errors=True)\n"
    + WRONG,
    0,
    flag="shutil",
)
attack(
    "writes a gradebook",
    "import pathlib\nfor folder in ({folder!r}, '..', '../..', '/course'):\n    try:\n        pathlib.Path(folder, 'gradebook.csv').write_text('student,total\\n')\n    except OSError:\n        pass\n"
    + RIGHT,
    3,
)
attack(
    "lays links out",
    "import os\nos.symlink({canary!r}, '/tmp/link')\ntry:\n    open('/tmp/link', 'w').write('gone')\nexcept OSError:\n    pass\n"
    + RIGHT,
    3,
)
