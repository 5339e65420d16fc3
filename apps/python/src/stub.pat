kvtool._kvtool.__prefix__:
    # Generated from the signatures in apps/python/src; scripts/check/stub.py compares and rewrites it.
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    from ._batch import BatchResult

    Level = Literal["fast", "default", "high", "max"] | int
    Readable = Any  # memory: the buffer protocol, DLPack on the CPU, arrays of ml_dtypes
    Writable = Any  # Readable memory that is not read-only
    Pieces = Any  # Readable, or a list or tuple of them
    WritablePieces = Any  # Writable, or a list or tuple of them
    DType = Any  # None, "bf16", numpy.float16, ml_dtypes.bfloat16, torch.bfloat16, ...
    Shape = Sequence[int] | None
    Progress = Callable[[int, int], bool | None] | None
    Key = bytes | bytearray | memoryview | None

