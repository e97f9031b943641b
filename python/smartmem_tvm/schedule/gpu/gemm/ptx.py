# SPDX-License-Identifier: Apache-2.0
"""The PTX instructions of a matrix product as statements, and the fragment of a matrix that each lane holds.

``mma.sync`` multiplies 16 rows by 8 columns over 32 bytes of terms: 16 numbers of two bytes, 8 of four. The fragments
of its 32 lanes, with ``g = lane // 4`` and ``t = lane % 4`` (PTX ISA, "Matrix Fragments for mma.m16n8k16"):

    left   four registers of two float16   rows g, g + 8; terms 2t, 2t + 1, and these + 8
    right  two registers of two float16    terms 2t, 2t + 1, and these + 8; column g
    sums   four float32                    rows g, g + 8; columns 2t, 2t + 1

With numbers of four bytes (m16n8k8) a register holds one number, of term t, or of t + 4; with bytes (m16n8k32) four
of them, from term 4t on, and from 4t + 16 on: the same bytes. Sums of bytes are 32-bit integers.

``ldmatrix`` loads fragments from shared memory: each lane passes the address of one row of 16 bytes. It moves pairs of
two-byte numbers; a pair may be one number of four bytes, unless the load transposes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.backend.cuda.op import cuda_cvta_generic_to_shared, cuda_warp_reduce
from tvm.script import tirx as T

from ...core.nest import index

ROWS, COLUMNS = 16, 8  # results of one instruction, by definition of PTX (mma)
LEFT, RIGHT, SUMS = 4, 2, 4  # registers of a lane, by definition of PTX (mma)
_ROW_BYTES, _TERM_BYTES = 16, 32  # bytes of a row of ldmatrix, and of the terms of mma, by definition of PTX


@dataclass(frozen=True)
class Element:
    """A type of numbers that matrix instructions multiply.

    Attributes
    ----------
    name : str
        Its name in instructions.
    dtype : str
        Its type in memory.
    bytes : int
        Bytes of a number in memory.
    right : str
        Name of the right operand's numbers in instructions, where it is another one: bytes may be signed on one side.
    total : str
        Name of the sums in instructions.
    """

    name: str
    dtype: str
    bytes: int
    right: str = ""
    total: str = "f32"

    @property
    def row(self) -> int:
        """Numbers in 16 bytes: a row of ldmatrix, and the widest copy."""
        return _ROW_BYTES // self.bytes

    @property
    def terms(self) -> int:
        """Terms of one instruction."""
        return _TERM_BYTES // self.bytes

    @property
    def kinds(self) -> tuple[str, str]:
        """Names of both operands' numbers in instructions."""
        return self.name, self.right or self.name

    @property
    def turns(self) -> bool:
        """Whether instructions accept operands whose rows, or columns, are innermost in shared memory (transposed)."""
        return self.bytes == 2

    @property
    def terms_innermost(self) -> bool:
        """Whether terms are always innermost in shared memory: no load puts four bytes of four rows into a register."""
        return self.bytes == 1

    @property
    def widest(self) -> int:
        """Most columns of one instruction of a warpgroup: 256, and of bytes 224 in TVM's table of PTX."""
        return 224 if self.terms_innermost else 256

    @property
    def sums(self) -> tuple[str, str]:
        """Types of a sum: in the registers of instructions, and elsewhere."""
        return ("float32", "float32") if self.total == "f32" else ("uint32", "int32")

    @property
    def word(self) -> str:
        """Name of a sum in loads and stores."""
        return "f32" if self.total == "f32" else "b32"

    @property
    def rounded(self) -> bool:
        """Whether memory holds more digits than instructions read: registers are then rounded first."""
        return self.name == "tf32"


HALF = Element("f16", "float16", 2)
SHORT = {"float16": HALF, "bfloat16": Element("bf16", "bfloat16", 2)}  # same in memory
ELEMENTS = {**SHORT, "tf32": Element("tf32", "float32", 4)}
_BYTES = {"uint8": "u8", "int8": "s8"}


def element_of_bytes(left: str, right: str) -> Element:
    """Return the element of two operands of bytes, signed or unsigned; shared memory holds them as unsigned ones."""
    return Element(_BYTES[left], "uint8", 1, _BYTES[right], "s32")


def multiply(sums, left, right, element: Element) -> tirx.Stmt:
    """Return ``sums += left @ right``; each a list of a lane's registers."""
    kinds, total = ".".join(element.kinds), element.total
    return _do(f"mma.sync.aligned.m16n8k{element.terms}.row.col.{total}.{kinds}.{total}", *sums, *left, *right, *sums)


def dot_of_bytes(total, left, right, kinds: tuple[str, str]) -> tirx.Stmt:
    """Return ``total += left @ right`` of four bytes each, in one int32; `kinds` are their types, not both unsigned."""
    words = [
        each if kind == "int8" else tirx.reinterpret("uint32", each)
        for each, kind in zip((left, right), kinds, strict=True)
    ]
    names = ".".join(_BYTES[kind].replace("8", "32") for kind in kinds)
    return _do(f"dp4a.{names}", total, *words, total)


def load_word(word, place) -> tirx.Stmt:
    """Load one register from shared memory."""
    return _do("ld.shared.b32", word, place)


def round_word(word) -> tirx.Stmt:
    """Round a register from float32 to the nearest tf32 number; instructions would truncate it."""
    return _do("cvt.rna.tf32.f32", word, tirx.reinterpret("float32", word))


def load_fragments(words, place, transposed: bool) -> tirx.Stmt:
    """Load two or four registers from rows of shared memory; `place` is the address of this lane's row."""
    across = ".trans" if transposed else ""
    return _do(f"ldmatrix.sync.aligned.m8n8.x{len(words)}{across}.shared.b16", *words, place)


def pack(word, low, high, element: Element) -> tirx.Stmt:
    """Pack two float32 numbers into a register as two numbers of 16 bits."""
    return _do(f"cvt.rn.{element.name}x2.f32", word, high, low)


def largest(value):
    """Return the maximum over four neighbouring lanes: those that hold a row of sums."""
    return cuda_warp_reduce(value, "max", 4)


def added(value):
    """Return the sum over the same lanes."""
    return cuda_warp_reduce(value, "sum", 4)


def copy(to, source, size: int, there) -> tirx.Stmt:
    """Start an asynchronous copy of `size` bytes (4, 8, 16) from global to shared memory; zeros unless `there`."""
    kind = "cg" if size == 16 else "ca"  # the widest copies bypass the L1 cache
    length = () if there is None else (tirx.Select(there, tirx.const(size, "uint32"), tirx.const(0, "uint32")),)
    return _do(f"cp.async.{kind}.shared.global", to, source, tirx.const(size, "int32"), *length)


def fill(place, byte: int, size: int) -> tirx.Stmt:
    """Store a byte `size` times (4, 8, 16) to shared memory."""
    word = tirx.const((byte & 0xFF) * 0x01010101, "uint32")
    vector = "" if size == 4 else f".v{size // 4}"
    return _do(f"st.shared{vector}.b32", place, *[word] * (size // 4))


def commit() -> tirx.Stmt:
    """Commit the copies started so far as one group."""
    return _do("cp.async.commit_group")


def wait(pending: int) -> tirx.Stmt:
    """Wait until at most `pending` groups of copies are unfinished."""
    return _do("cp.async.wait_group", tirx.const(pending, "int32"))


def depend() -> list[tirx.Stmt]:
    """Return the wait for the kernels before, and the leave to launch the one after (`deploy.early_launch`)."""
    return [_do("griddepcontrol.wait"), _do("griddepcontrol.launch_dependents")]


def is_dependency(call) -> bool:
    """Whether a call is one of `depend`."""
    return getattr(call.op, "name", "") == "tirx.ptx.griddepcontrol"


def multiply_group(sums, left, right, element: Element, transposed: tuple[bool, bool], add: bool = True) -> tirx.Stmt:
    """Start ``sums += left @ right`` on a warpgroup (four warps, 64 rows), asynchronously.

    Parameters
    ----------
    sums : sequence
        A lane's registers, half as many as there are columns.
    left : expression or list
        Descriptor (`matrix`) of an operand in shared memory, or a lane's registers, which are those of `multiply`.
    right : expression
        Descriptor of the other operand.
    transposed : (bool, bool)
        Whether rows and columns, not terms, are innermost in shared memory; only for an element that `turns`.
    add : bool
        If False, ``sums = left @ right``.
    """
    kinds, columns, held = ".".join(element.kinds), 2 * len(sums), isinstance(left, list)
    trans = [tirx.const(int(each), "int32") for each in transposed[held:]] if element.turns else []
    signs = [] if element.terms_innermost else [tirx.const(1, "int32")] * 2  # integers have no signs of operands
    text = f"wgmma.mma_async.sync.aligned.m64n{columns}k{element.terms}.{element.total}.{kinds}"
    return _do(text, *sums, *(left if held else [left]), right, tirx.const(add, "bool"), *signs, *trans)


def matrix(place, swizzle: int, leading: int, stride: int):
    """Return the descriptor of a matrix in shared memory (PTX ISA, "Matrix descriptor format").

    Parameters
    ----------
    place : expression
        Address of its first element.
    swizzle : int
        Bytes of the swizzle pattern: 32, 64, 128.
    leading, stride : int
        Bytes from block to block of a row, and from eight rows to the next eight.
    """
    mode = {128: 1, 64: 2, 32: 3}[swizzle]
    constant = (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62
    at = cuda_cvta_generic_to_shared(place).astype("uint64")
    low = tirx.bitwise_and(tirx.shift_right(at, tirx.const(4, "uint64")), tirx.const(0x3FFF, "uint64"))
    return tirx.bitwise_or(low, tirx.const(constant, "uint64"))


def begin_group() -> tirx.Stmt:
    """Fence: make writes of registers visible to the next products of the warpgroup."""
    return _do("wgmma.fence.sync.aligned")


def end_group() -> tirx.Stmt:
    """Commit the products started so far as one set."""
    return _do("wgmma.commit_group.sync.aligned")


def wait_group(pending: int) -> tirx.Stmt:
    """Wait until at most `pending` sets of products are unfinished."""
    return _do("wgmma.wait_group.sync.aligned", tirx.const(pending, "int32"))


def publish() -> tirx.Stmt:
    """Fence: make this thread's writes to shared memory visible to warpgroup products after the next barrier."""
    return _do("fence.proxy.async.shared::cta")


def barrier() -> tirx.Stmt:
    """Synchronise the threads of a thread block."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def write_pair(place, first, second, element: Element) -> tirx.Stmt:
    """Store two sums to shared memory."""
    return _do(f"st.shared.v2.{element.word}", place, first, second)


def read_vector(numbers, place, element: Element) -> tirx.Stmt:
    """Load two or four sums from shared memory."""
    return _do(f"ld.shared.v{len(numbers)}.{element.word}", *numbers, place)


def address(buffer, at):
    """Return the address of an element."""
    return tirx.address_of(buffer[at if not isinstance(at, int) else index(at)])


def whole(buffer) -> tirx.Stmt:
    """Take the address of the last element, a no-op: TVM would shrink the buffer to the last address that it sees."""
    return tirx.Evaluate(address(buffer, int(buffer.shape[0]) - 1))


def _do(text: str, *operands) -> tirx.Stmt:
    return tirx.Evaluate(T.ptx[text](*operands))
