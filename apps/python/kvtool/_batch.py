# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The result of a batch, created by the compiled module."""

from __future__ import annotations

from collections.abc import Iterator


class BatchResult:
    """The result of a batch in the order of its items; a sequence of its objects.

    objects: frames, or raw bytes; None if the item failed or had its own buffer. sizes: bytes of the frame, or raw
    bytes; 0 for failures. status: 0, or -N, where explain(N) describes the failure.
    """

    def __init__(self, objects: list[bytes | None], sizes: list[int], status: list[int]) -> None:
        self.objects, self.sizes, self.status = objects, sizes, status

    @property
    def ok(self) -> bool:
        """True if no item failed."""
        return not any(self.status)

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, index: int) -> bytes | None:
        return self.objects[index]

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.objects)

    def __repr__(self) -> str:
        failed = sum(code != 0 for code in self.status)
        return f"<kvtool.BatchResult of {len(self)}, {failed} failed>"
