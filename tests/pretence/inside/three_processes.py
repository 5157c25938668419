"""Call functions of `helpers` in this process, in ranks and in a subprocess: a script whose lines are counted."""

import subprocess
import sys

from helpers.core.units import human_bytes
from helpers.ranks.run import run_ranks

if __name__ == "__main__":
    run_ranks(lambda: human_bytes(1), 2, show=False)
    program = "from helpers.core.table import text_table; print(text_table([['a', 'b'], ['1', '2']]))"
    subprocess.run([sys.executable, "-c", program], check=True)
