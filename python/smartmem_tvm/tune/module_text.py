# SPDX-License-Identifier: Apache-2.0
"""A kernel as text for one line of a file: MetaSchedule's JSON, which is verbose, compressed to a tenth."""

from __future__ import annotations

import base64
import json
import zlib

from tvm import s_tir

from .. import json_data
from ..errors import UserError
from ..module_check import check_module_json

MOST_BYTES = 2**26  # bytes of a kernel as JSON; the largest takes a few million
_LENGTH = 8  # bytes before the module


def module_text(workload: s_tir.meta_schedule.database.Workload) -> str:
    """Return a kernel as MetaSchedule's JSON, compressed by zlib, in base64."""
    return base64.b64encode(zlib.compress(json.dumps(workload.as_json()).encode(), 9)).decode()


def workload_of(text: str) -> s_tir.meta_schedule.database.Workload:
    """Return the workload of a `module_text`."""
    return s_tir.meta_schedule.database.Workload.from_json(_plain(text))


def _plain(text: str) -> list[str]:
    """Return MetaSchedule's JSON: a hash, and a module, itself JSON in base64 after its length."""
    try:
        packed = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj()
        found = json_data.parse(unpacker.decompress(packed, MOST_BYTES))
        if not unpacker.eof or not json_data.fits(found, [str]) or len(found) != 2:
            raise ValueError("it is no kernel")
        check_module_json(base64.b64decode(found[1], validate=True)[_LENGTH:])
    except (zlib.error, UserError) as error:
        raise ValueError(str(error)) from error
    return found
