"""Take more than a share, or all; stay behind."""

from . import ATTACKS, RIGHT, WRONG, Attack, attack, in_method

attack("hangs at once", "while True:\n    pass\n", 0, "partly (timeout)")
attack("hangs in a method", in_method("while True:\n    pass", RIGHT, "update(self)"), 0, "partly (timeout)")
attack(
    "sleeps and ignores signals",
    "import signal, time\nfor s in range(1, 32):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\ntime.sleep(10**6)\n",
    0,
    "partly (timeout)",
)
attack("hangs when it leaves", "import atexit, time\natexit.register(time.sleep, 10**6)\n" + RIGHT, 3)
attack("dies", "import os\nos._exit(3)\n", 0, "crashed")
attack("dies of a signal", "import os\nos.kill(os.getpid(), 9)\n", 0, "crashed")
attack("kills its parent", "import os\nos.kill(os.getppid(), 9)\n" + RIGHT, 0, "crashed")
attack("kills all it can", "import os\nos.kill(-1, 9)\n" + RIGHT, 0, "crashed")
attack("overflows the stack of C", "import ctypes\nctypes.string_at(0)\n", 0, "crashed")
attack("takes all memory at once", "x = bytearray(1 << 45)\n" + WRONG, 0)
attack("takes all memory bit by bit", "x = []\nwhile True:\n    x.append(bytearray(b'x') * (1 << 28))\n", 0)
attack(
    "a bomb of forks",
    "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    0,
    "crashed",
)
attack(
    "a bomb of threads",
    "import threading, time\nfor _ in range(3000):\n    try:\n        threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()\n    except RuntimeError:\n        break\n"
    + RIGHT,
    3,
)
attack(
    "fills the disk",
    "import os\nfor i in range(100):\n    try:\n        with open(f'/tmp/{i}', 'wb') as file:\n            for _ in range(64):\n                file.write(b'x' * (1 << 22))\n    except OSError:\n        break\n"
    + WRONG,
    0,
)
attack("prints without end", "for _ in range(200):\n    print('x' * 1_000_000)\n" + RIGHT, 3)
attack(
    "leaves a process behind",
    "import subprocess\nsubprocess.Popen(['sleep', '4711'], start_new_session=True)\n" + RIGHT,
    3,
    flag="process",
)
attack(
    "leaves a daemon behind",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        import time\n        time.sleep(4711)\n    os._exit(0)\n"
    + RIGHT,
    3,
)
ATTACKS["hangs in the last part only"] = Attack(
    {"scaler": RIGHT, "step": "while True:\n    pass\n"}, 3, "partly (timeout)"
)
ATTACKS["dies in the second part only"] = Attack({"scaler": RIGHT, "step": "import os\nos._exit(0)\n"}, 3, "crashed")
