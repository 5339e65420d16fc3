# SPDX-License-Identifier: Apache-2.0
"""Compares page b with the result of joining pages b and a."""
import json
import zipfile

def arrays(name):
    with zipfile.ZipFile(name) as file:
        return {n: file.read(n)[-256:] for n in file.namelist() if n.startswith(("k_", "v_"))}
page, b, ba = arrays("page.npz"), arrays("b.npz"), arrays("ba.npz")
print("the second page alone:", b == page, sorted(page))
print("and before zeros:", all(ba[n][:128] == page[n][-128:] and not any(ba[n][128:]) for n in page))
