"""Deterministic simulation: make simulate SEEDS=100000, or make simulate SEED=17 to see what happened in one.

Exits with 1 when a seed shows a violation; its number is printed, and it replays exactly (with the same code and the
same version of Python).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter

from .world import Report, in_brief, simulate


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--seeds", type=int, default=500, help="so many")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--print", action="store_true", help="only the print of what happened, a line a seed")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return show(simulate(options.seed))
    seeds = range(options.first, options.first + options.seeds)
    if options.print:
        for seed in seeds:
            say(f"{seed} {simulate(seed).print}")
        return 0
    return many(seeds, options.jobs)


def show(report: Report) -> int:
    for at, who, what in report.trace:
        say(f"{at:9.4f}  {who:<8}  {what}")
    say(f"seed {report.seed}: {len(report.trace)} lines, print {report.print[:16]}, {dict(report.counts)}")
    return bool(report.violations)


def many(seeds: range, jobs: int) -> int:
    counts, bad, done = Counter[str](), 0, 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done, report in enumerate(pool.imap_unordered(in_brief, seeds, chunksize=8), 1):
            counts += report.counts
            bad += bool(report.violations)
            for violation in report.violations:
                say(f"seed {report.seed}: {violation}\n  replay: make simulate SEED={report.seed}")
            if done % 1000 == 0:
                say(f"{done:,} seeds")
    say(f"{done:,} seeds, {bad} with violations; {dict(sorted(counts.items()))}")
    return bool(bad)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
