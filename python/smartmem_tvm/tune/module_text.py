# SPDX-License-Identifier: Apache-2.0
"""A kernel as a line of a file has it: what MetaSchedule writes names every node, and is packed to a tenth."""

from __future__ import annotations

import base64
import json
import zlib

from tvm import s_tir

from .. import json_data
from ..errors import UserError
from ..module_check import check_module_json

MOST_BYTES = 2**26  # of a kernel as JSON; the largest takes a few million
_LENGTH = 8  # bytes before the module


def module_text(workload: s_tir.meta_schedule.database.Workload) -> str:
    """A kernel in MetaSchedule's JSON, packed by zlib, in base64."""
    return base64.b64encode(zlib.compress(json.dumps(workload.as_json()).encode(), 9)).decode()


def workload_of(text: str) -> s_tir.meta_schedule.database.Workload:
    """What `module_text` was made from."""
    return s_tir.meta_schedule.database.Workload.from_json(_plain(text))


def is_module_text(text: str) -> bool:
    """Whether `workload_of` can be asked: the text is whole, and holds nothing but a module."""
    try:
        _plain(text)
    except ValueError:
        return False
    return True


def _plain(text: str) -> list[str]:
    """MetaSchedule's JSON: a hash and a module, which is JSON in base64 again, behind its length."""
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
