# SPDX-License-Identifier: Apache-2.0
"""``python tests/fuzz_readers/run.py [READER ...] --inputs N --seconds S --first N``: fuzz the readers of files."""

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz_readers.harness import content, run, summary
from fuzz_readers.readers import READERS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", choices=[*READERS, []], metavar="READER", help=", ".join(READERS))
    parser.add_argument("--inputs", type=int, default=10_000, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each reader at most")
    parser.add_argument("--write", metavar="FILE", help="write the first input of the first reader, and end")
    args = parser.parse_args()
    names = args.readers or list(READERS)
    if args.write:
        Path(args.write).write_bytes(content(READERS[names[0]], args.first))
        return 0
    logging.disable(logging.CRITICAL)
    faults = 0
    for name in names:
        start = time.monotonic()
        outcome = run(name, range(args.first, args.first + args.inputs), until=start + args.seconds)
        print(f"{name}: {summary(outcome)}, {time.monotonic() - start:.0f} s", flush=True)
        faults += len(outcome.faults)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
