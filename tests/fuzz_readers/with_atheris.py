# SPDX-License-Identifier: Apache-2.0
"""``python tests/fuzz_readers/with_atheris.py READER -runs=N``: fuzz a reader, guided by what it reaches.

What stands behind the name of the reader is for libFuzzer. Needs `pip install atheris`; ends at the first fault.
"""

import logging
import random
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

with atheris.instrument_imports(include=["smartmem_tvm"], enable_loader_override=False):
    from fuzz_readers.readers import READERS


def main() -> None:
    reader = READERS[sys.argv[1]]
    logging.disable(logging.CRITICAL)
    path = Path(tempfile.mkdtemp(prefix="fuzz-")) / reader.file

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        try:
            reader.read(path)
        except reader.allowed:
            return

    def change(data: bytes, most: int, seed: int) -> bytes:
        generator = random.Random(seed)
        try:
            return reader.change(generator.choice([data, *reader.seeds()]), generator)[:most]
        except Exception:  # of a file that is damaged already
            return atheris.Mutate(data, most)

    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, seed in enumerate(reader.seeds()):
        (corpus / str(number)).write_bytes(seed)
    most = 2 * max(map(len, reader.seeds())) + 1000
    limits = [f"-max_len={most}", "-timeout=30", "-rss_limit_mb=8000", f"-artifact_prefix={corpus}/"]
    atheris.Setup([sys.argv[0], *limits, *sys.argv[2:], str(corpus)], attempt, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
