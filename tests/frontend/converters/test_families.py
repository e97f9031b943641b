# SPDX-License-Identifier: Apache-2.0
from collections import Counter

from smartmem_tvm.frontend import converters


def test_each_operator_has_one_converter():
    names = Counter(name for family in converters._FAMILIES for name in family.CONVERTERS)
    assert [name for name, count in names.items() if count > 1] == []
