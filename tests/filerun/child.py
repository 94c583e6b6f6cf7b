"""A process that runs a file with a slow endpoint, to be killed: `child.py FOLDER LINES`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import counting
from filerun.mini import Desk, lines


def main(folder: Path, count: int) -> None:
    desk = Desk(folder, lines(*(f"q{number}" for number in range(count))))
    desk.run(counting(folder), concurrency=10)


main(Path(sys.argv[1]), int(sys.argv[2]))
