# SPDX-License-Identifier: Apache-2.0
"""Gives every malformed golden file to the readers: read_hostile.py KVTOOL GOLDEN."""
import json
import os
import subprocess
import sys

kvtool, golden = sys.argv[1:]
wrong = []
for item in json.load(open(f"{golden}/manifest.json"))["bad"]:
    path = f"{golden}/{item['file']}"
    if not os.path.exists(path):
        continue
    for command in (["inspect", "--stats"], ["weights", "inspect"], ["trace", "inspect"]):
        child = subprocess.Popen([kvtool, *command, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = child.stderr.read().decode().splitlines()
        _, status, usage = os.wait4(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        errors = [line for line in said if line.startswith("kvtool: ") and "warning:" not in line]
        fine = code in (3, 5) and len(errors) == 1 or code == 0 and ("accept" in item["expect"] or "warn" in item["expect"] and said)
        if not fine or usage.ru_maxrss > 256 * 1024 or os.path.exists("KVTOOL_PWNED"):
            wrong.append((item["file"], command, code, usage.ru_maxrss, said[:2]))
print("\n".join(map(str, wrong)) or "all refused or allowed")
