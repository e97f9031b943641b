# SPDX-License-Identifier: Apache-2.0
"""The PTX instructions that a matrix product is made of, as statements, and what part of a matrix each lane holds.

``mma.sync`` multiplies 16 rows by 8 columns over 32 bytes of terms: 16 numbers of two bytes, 8 of four. The fragments
of its 32 lanes, with ``g = lane // 4`` and ``t = lane % 4`` (PTX ISA, "Matrix Fragments for mma.m16n8k16"):

    left   four registers of two halves   rows g, g + 8; terms 2t, 2t + 1, and these + 8
    right  two registers of two halves    terms 2t, 2t + 1, and these + 8; column g
    sums   four floats                    rows g, g + 8; columns 2t, 2t + 1

In numbers of four bytes (m16n8k8) a register is one number, of term t, and of t + 4: the same bytes.

``ldmatrix`` brings fragments from shared memory: each lane names one row of 16 bytes. It moves pairs of halves, and a
pair may be one number of four bytes, unless it is to be transposed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.backend.cuda.op import cuda_cvta_generic_to_shared, cuda_warp_reduce
from tvm.script import tirx as T

from ...core.nest import index

ROWS, COLUMNS = 16, 8  # of one instruction
LEFT, RIGHT, SUMS = 4, 2, 4  # registers of a lane
_ROW_BYTES, _TERM_BYTES = 16, 32


@dataclass(frozen=True)
class Element:
    """A type of numbers that matrix instructions multiply.

    Attributes
    ----------
    name : str
        What the instructions call it.
    dtype : str
        How it lies in memory.
    bytes : int
    """

    name: str
    dtype: str
    bytes: int

    @property
    def row(self) -> int:
        """Numbers that ldmatrix reads in one go, and that the widest copy moves."""
        return _ROW_BYTES // self.bytes

    @property
    def terms(self) -> int:
        """Terms of one instruction."""
        return _TERM_BYTES // self.bytes

    @property
    def turns(self) -> bool:
        """Whether instructions take what lies with rows, or columns, next to each other in shared memory."""
        return self.bytes == 2

    @property
    def rounded(self) -> bool:
        """Whether memory holds more digits than instructions read."""
        return self.name == "tf32"


HALF = Element("f16", "float16", 2)
SHORT = {"float16": HALF, "bfloat16": Element("bf16", "bfloat16", 2)}  # 16 bits, in memory as instructions take them
ELEMENTS = {**SHORT, "tf32": Element("tf32", "float32", 4)}


def multiply(sums, left, right, element: Element) -> tirx.Stmt:
    """``sums += left @ right``; each a list of a lane's registers."""
    kind = element.name
    return _do(f"mma.sync.aligned.m16n8k{element.terms}.row.col.f32.{kind}.{kind}.f32", *sums, *left, *right, *sums)


def load_word(word, place) -> tirx.Stmt:
    """One register from shared memory."""
    return _do("ld.shared.b32", word, place)


def round_word(word) -> tirx.Stmt:
    """A register with a float becomes one with the nearest number of tf32; instructions would cut its digits off."""
    return _do("cvt.rna.tf32.f32", word, tirx.reinterpret("float32", word))


def load_fragments(words, place, transposed: bool) -> tirx.Stmt:
    """Two or four registers from the row of shared memory whose address is `place`, one of each lane."""
    across = ".trans" if transposed else ""
    return _do(f"ldmatrix.sync.aligned.m8n8.x{len(words)}{across}.shared.b16", *words, place)


def pack(word, low, high, element: Element) -> tirx.Stmt:
    """Two floats as two numbers of 16 bits of a register."""
    return _do(f"cvt.rn.{element.name}x2.f32", word, high, low)


def largest(value):
    """The largest number of four neighbouring lanes: those that hold a row of sums."""
    return cuda_warp_reduce(value, "max", 4)


def added(value):
    """The sum over the same lanes."""
    return cuda_warp_reduce(value, "sum", 4)


def copy(to, source, size: int, there) -> tirx.Stmt:
    """Start to copy `size` bytes (4, 8, 16) from global to shared memory; zeros unless `there`."""
    kind = "cg" if size == 16 else "ca"  # the widest copies go past the first cache
    length = () if there is None else (tirx.Select(there, tirx.const(size, "uint32"), tirx.const(0, "uint32")),)
    return _do(f"cp.async.{kind}.shared.global", to, source, tirx.const(size, "int32"), *length)


def commit() -> tirx.Stmt:
    """What was started so far is one group of copies."""
    return _do("cp.async.commit_group")


def wait(pending: int) -> tirx.Stmt:
    """Wait until no more than `pending` groups of copies are on their way."""
    return _do("cp.async.wait_group", tirx.const(pending, "int32"))


def multiply_group(sums, left, right, element: Element, transposed: tuple[bool, bool], add: bool = True) -> tirx.Stmt:
    """``sums += left @ right`` by the four warps of a group, 64 rows; begun, not finished.

    Parameters
    ----------
    sums : sequence
        A lane's registers, half as many as there are columns.
    left : expression or list
        Descriptor (`matrix`) of an operand in shared memory, or a lane's registers, which are those of `multiply`.
    right : expression
        Descriptor of the other operand.
    transposed : (bool, bool)
        Whether rows and columns, not terms, lie next to each other there; only an element that `turns` may.
    add : bool
        If not, ``sums = left @ right``.
    """
    kind, columns, held = element.name, 2 * len(sums), isinstance(left, list)
    trans = [tirx.const(int(each), "int32") for each in transposed[held:]] if element.turns else []
    one = tirx.const(1, "int32")
    text = f"wgmma.mma_async.sync.aligned.m64n{columns}k{element.terms}.f32.{kind}.{kind}"
    return _do(text, *sums, *(left if held else [left]), right, tirx.const(add, "bool"), one, one, *trans)


def matrix(place, swizzle: int, leading: int, stride: int):
    """The descriptor of a matrix in shared memory (PTX ISA, "Matrix descriptor format").

    Parameters
    ----------
    place : expression
        Address of its first element.
    swizzle : int
        Bytes over which vectors are exchanged: 32, 64, 128.
    leading, stride : int
        Bytes from block to block of a row, and from eight rows to the next eight.
    """
    mode = {128: 1, 64: 2, 32: 3}[swizzle]
    constant = (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62
    at = cuda_cvta_generic_to_shared(place).astype("uint64")
    low = tirx.bitwise_and(tirx.shift_right(at, tirx.const(4, "uint64")), tirx.const(0x3FFF, "uint64"))
    return tirx.bitwise_or(low, tirx.const(constant, "uint64"))


def begin_group() -> tirx.Stmt:
    """Registers are as the next products of a group of warps expect them."""
    return _do("wgmma.fence.sync.aligned")


def end_group() -> tirx.Stmt:
    """The products begun so far belong together."""
    return _do("wgmma.commit_group.sync.aligned")


def wait_group(pending: int) -> tirx.Stmt:
    """Wait until at most `pending` such sets of products are unfinished."""
    return _do("wgmma.wait_group.sync.aligned", tirx.const(pending, "int32"))


def publish() -> tirx.Stmt:
    """What this thread has put into shared memory is seen by products of groups of warps after the next barrier."""
    return _do("fence.proxy.async.shared::cta")


def barrier() -> tirx.Stmt:
    """All threads of a group."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def write_pair(place, first, second) -> tirx.Stmt:
    """Two floats into shared memory."""
    return _do("st.shared.v2.f32", place, first, second)


def read_vector(numbers, place) -> tirx.Stmt:
    """Two or four floats from shared memory."""
    return _do(f"ld.shared.v{len(numbers)}.f32", *numbers, place)


def address(buffer, at):
    """Where an element lies."""
    return tirx.address_of(buffer[at if not isinstance(at, int) else index(at)])


def whole(buffer) -> tirx.Stmt:
    """Nothing, but TVM, which cuts a buffer off behind the last address that it sees, leaves it as it is."""
    return tirx.Evaluate(address(buffer, int(buffer.shape[0]) - 1))


def _do(text: str, *operands) -> tirx.Stmt:
    return tirx.Evaluate(T.ptx[text](*operands))
