from typing import overload


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

class Profile:
    """
    Statistics of one model's pages, learnt by train() or `kvtool train`: short pages coded with them
    need no tables of their own.
    """

    def __init__(self, file: Readable) -> None:
        """
        file: the bytes of a .kvp file; anything else raises KV1003 or another finding.
        """

    @property
    def hash(self) -> bytes:
        """16 bytes, by which frames and archives name it."""

class Context:
    """
    Level, threads and scratch memory for many calls. One call at a time: a second thread gets KV0007. cancel() and
    stats() may be called beside a running call. As a context manager it is closed at the end.
    """

    def __init__(self, level: Level = "default", threads: int = 1, *, max_raw_bytes: int = 0, profile: Profile | None = None) -> None:
        """
        threads: the caller's included; 0: as many as the process may use. max_raw_bytes: larger objects are refused with
        KV1014; 0: no limit. profile: frames are coded with it at levels from default on, wherever it makes them smaller;
        such frames decode only with it.
        """

    @property
    def level(self) -> str:
        """"fast" to "max"."""

    @property
    def threads(self) -> int:
        """As given."""

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Free threads and memory, once a running call has ended. Later calls raise ValueError.
        """

    def __enter__(self) -> Context: ...

    def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str: ...

    @overload
    def encode(self, data: Readable, *, dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown", tag: int = 0, context: Key = None) -> bytes:
        """
        Compress one page, chunk or tensor into a frame that is complete in itself.

        data: any contiguous memory: bytes, memoryview, a NumPy array (ml_dtypes too), a tensor on the CPU.
        dtype: type of the values, if the object does not state it: "bf16", "f16", ...; integers of two bytes count as bf16. A
            type that frames do not have is a TypeError; "u8" keeps their bytes alone.
        shape: in values, (tokens, heads, head_dim) in the order given; the array's own by default. Axes before the last
            three count as tokens; with two axes there is one head. A shape that does not fit is dropped.
        order: "token_head_dim" or "head_token_dim"; "unknown" for none.
        role: "k", "v", "kv" (side by side in each head) or "unknown".
        tag: a number of the caller's own. context: 16 bytes that name model, layer and tokens (hash128); decoding checks them.
        out: a writable buffer of bound(len(data)) bytes; then the size of the frame is returned.

        Only context is checked when the frame is decoded: a wrong dtype or shape costs compression and nothing else.
        """

    @overload
    def encode(self, data: Readable, *, dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown", tag: int = 0, context: Key = None, out: Writable) -> int: ...

    def encode_batch(self, objects: Sequence[Pieces], *, dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown", contexts: Sequence[Key] | None = None, tags: Sequence[int] | None = None, outs: Sequence[Writable] | None = None) -> BatchResult:
        """
        Compress many objects in one call, spread over the context's threads.

        objects: one entry per object: a buffer, or a list or tuple of buffers (pieces) that together are one object, in order.
        contexts, tags, outs: None, or one entry per object. dtype, shape, order and role hold for all; an object in pieces has
            the shape given or none, and without dtype the type of its pieces, which have to agree.
        outs: writable buffers of bound(raw bytes) bytes each; then result.objects holds None.

        Failures are values in result.status; one bad object changes no other.
        """

    @overload
    def decode(self, frame: Readable, *, context: Key = None) -> bytes:
        """
        The raw bytes of a frame, checked against the hash in its header.

        frame: bytes after the frame are ignored.
        context: 16 bytes that the frame must carry; None: not checked.
        out: a writable buffer of exactly the raw size, filled; then that size is returned. After an error it holds garbage.
        """

    @overload
    def decode(self, frame: Readable, *, context: Key = None, out: Writable) -> int: ...

    @overload
    def decode_tokens(self, frame: Readable, begin: int, count: int, *, context: Key = None) -> bytes:
        """
        Tokens [begin, begin + count) alone, as [token][head][dim], checked by the hashes of the segments they lie in.

        Possible where frame_info(frame)["segment_tokens"] is not 0; otherwise KV1302.
        """

    @overload
    def decode_tokens(self, frame: Readable, begin: int, count: int, *, context: Key = None, out: Writable) -> int: ...

    def verify_frame(self, frame: Readable, *, context: Key = None) -> None:
        """
        Decode without an output, for scrubbers: raises Error unless all is well.
        """

    def decode_batch(self, frames: Sequence[Readable], *, contexts: Sequence[Key] | None = None, outs: Sequence[WritablePieces] | None = None) -> BatchResult:
        """
        Decode many frames in one call, spread over the context's threads.

        contexts: None, or per frame 16 bytes to be checked, or None.
        outs: None, or per frame a writable buffer, or a list or tuple of writable buffers that are filled in order.

        Failures are values in result.status; the output of a failed frame holds garbage.
        """

    def stats(self) -> dict[str, int]:
        """
        Sums since creation: raw_bytes, stored_bytes, encode_ns, decode_ns, frames, stored_raw, decoded, refused. Any
        thread.
        """

    def cancel(self) -> None:
        """
        Make the running call, if there is one, raise KV0008 within one segment. Any thread may call this.
        """

class _Queue:
    def __init__(self, context: Context, threads: int, depth: int) -> None: ...

    def encode(self, objects: Sequence[Pieces], **arguments: Any) -> int: ...

    def decode(self, frames: Sequence[Readable], **arguments: Any) -> int: ...

    def poll(self) -> list[tuple[int, BatchResult]]: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...

@overload
def encode(data: Readable, *, level: Level = "default", dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown", tag: int = 0, context: Key = None) -> bytes:
    """
    Compress one page, chunk or tensor into a frame that is complete in itself.

    data: any contiguous memory: bytes, memoryview, a NumPy array (ml_dtypes too), a tensor on the CPU.
    dtype: type of the values, if the object does not state it: "bf16", "f16", ...; integers of two bytes count as bf16. A
        type that frames do not have is a TypeError; "u8" keeps their bytes alone.
    shape: in values, (tokens, heads, head_dim) in the order given; the array's own by default. Axes before the last
        three count as tokens; with two axes there is one head. A shape that does not fit is dropped.
    order: "token_head_dim" or "head_token_dim"; "unknown" for none.
    role: "k", "v", "kv" (side by side in each head) or "unknown".
    tag: a number of the caller's own. context: 16 bytes that name model, layer and tokens (hash128); decoding checks them.
    out: a writable buffer of bound(len(data)) bytes; then the size of the frame is returned.

    Only context is checked when the frame is decoded: a wrong dtype or shape costs compression and nothing else.
    """

@overload
def encode(data: Readable, *, level: Level = "default", dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown", tag: int = 0, context: Key = None, out: Writable) -> int: ...

def encode_batch(objects: Sequence[Pieces], *, level: Level = "default", dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown", contexts: Sequence[Key] | None = None, tags: Sequence[int] | None = None, outs: Sequence[Writable] | None = None) -> BatchResult:
    """
    Compress many objects in one call, spread over the context's threads.

    objects: one entry per object: a buffer, or a list or tuple of buffers (pieces) that together are one object, in order.
    contexts, tags, outs: None, or one entry per object. dtype, shape, order and role hold for all; an object in pieces has
        the shape given or none, and without dtype the type of its pieces, which have to agree.
    outs: writable buffers of bound(raw bytes) bytes each; then result.objects holds None.

    Failures are values in result.status; one bad object changes no other.
    """

@overload
def decode(frame: Readable, *, context: Key = None) -> bytes:
    """
    The raw bytes of a frame, checked against the hash in its header.

    frame: bytes after the frame are ignored.
    context: 16 bytes that the frame must carry; None: not checked.
    out: a writable buffer of exactly the raw size, filled; then that size is returned. After an error it holds garbage.
    """

@overload
def decode(frame: Readable, *, context: Key = None, out: Writable) -> int: ...

@overload
def decode_tokens(frame: Readable, begin: int, count: int, *, context: Key = None) -> bytes:
    """
    Tokens [begin, begin + count) alone, as [token][head][dim], checked by the hashes of the segments they lie in.

    Possible where frame_info(frame)["segment_tokens"] is not 0; otherwise KV1302.
    """

@overload
def decode_tokens(frame: Readable, begin: int, count: int, *, context: Key = None, out: Writable) -> int: ...

def verify_frame(frame: Readable, *, context: Key = None) -> None:
    """
    Decode without an output, for scrubbers: raises Error unless all is well.
    """

def decode_batch(frames: Sequence[Readable], *, contexts: Sequence[Key] | None = None, outs: Sequence[WritablePieces] | None = None) -> BatchResult:
    """
    Decode many frames in one call, spread over the context's threads.

    contexts: None, or per frame 16 bytes to be checked, or None.
    outs: None, or per frame a writable buffer, or a list or tuple of writable buffers that are filled in order.

    Failures are values in result.status; the output of a failed frame holds garbage.
    """

def estimate(data: Readable, levels: Sequence[Level] = ("fast", "default", "high", "max"), *, dtype: DType = None, shape: Shape = None, order: str = "token_head_dim", role: str = "unknown") -> list[dict[str, Any]]:
    """
    Per level: level, ratio, encode_mb_s and decode_mb_s (one thread, here and now), from a sample of at most 64 KiB.
    For choosing a level.
    """

def _caps() -> dict[str, Any]: ...

def frame_info(frame: Readable) -> dict[str, Any]:
    """
    The header of a frame, whose first 128 bytes suffice. Its sizes are claims until the frame is decoded.
    """

def bound(raw_bytes: int) -> int:
    """Bytes that always suffice for a frame: raw_bytes + 128."""

def hash128(data: Readable | str) -> bytes:
    """
    XXH3-128 of bytes, or of a text in UTF-8, for use as a context. It detects accidents, not attacks.
    """

def _explain(finding: int) -> tuple[str, str, str, int]: ...

def _store_as(values: Writable, type: str, is_key: bool, head_dim: int) -> None:
    """
    Replace f32 values by those that attention reads back after llama.cpp's cache stored them in a block type.
    """

def _run(command: str, arguments: Sequence[bytes], progress: Progress = None) -> tuple[int, list[str], list[str]]: ...

def _main(arguments: Sequence[bytes]) -> int: ...

def _save(path: bytes, format: str, layers: Sequence[tuple[Readable, Readable]], dtype: DType, positions: Sequence[int] | None, tokens: Sequence[int] | None, force: bool) -> None: ...

class _OpenedSnapshot:
    def description(self) -> str: ...

    def facts(self) -> dict[str, Any]: ...

    def layers(self) -> list[Any]: ...

    def positions(self) -> list[tuple[str, list[int]]]: ...

    def tokens(self) -> list[int]: ...

    def array(self, layer: int, is_value: bool) -> tuple[Any, str, bool]: ...

def _open(arguments: Sequence[bytes], dtype: str) -> _OpenedSnapshot: ...

def _version() -> tuple[int, str]: ...
