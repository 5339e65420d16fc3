# SPDX-License-Identifier: Apache-2.0
"""The pages of `kvtool explain`."""

from __future__ import annotations

from typing import TypedDict

from . import _kvtool
from ._errors import FAULTS


class Explanation(TypedDict):
    """Returns the explanation of a finding."""

    finding: int
    id: str
    summary: str
    text: str
    fault: str


def explain(finding: int | str) -> Explanation:
    """Explains a finding: 1103, "KV1103", or the -1103 of a batch's status."""
    if isinstance(finding, str):
        digits = finding.upper().removeprefix("KV")
        if not digits.isdecimal():
            raise ValueError(f"finding '{finding}': expected KV and a number")
        finding = int(digits)
    number = abs(finding)
    if number > 39999:
        raise ValueError(f"finding {finding}: expected a number such as 1103")
    name, summary, text, fault = _kvtool._explain(number)
    return {"finding": number, "id": name, "summary": summary, "text": text, "fault": FAULTS[fault]}
