"""Passes every option for reading snapshots to every command that reads them, with a value that no input can
use."""
import json
import os
import subprocess

KVTOOL, TESTDATA = os.environ["KVTOOL"], os.environ["TESTDATA"]
STATE = f"{TESTDATA}/llamacpp/states/s260k-v050-f16.seq0.bin"
TRACED = f"{TESTDATA}/trace/s260k.seq0.bin"
TRACE = ["--trace", f"{TESTDATA}/trace/s260k", "--prompt-tokens", "64"]

# A complete line for each command, without the option.
LINES = {
    "inspect": [STATE],
    "compress": [STATE, "-o", "out.kvz"],
    "diff": [STATE, STATE],
    "convert": [STATE, "--to", "npz", "-o", "out.npz"],
    "store add": ["store", STATE],
    "advise": [TRACED, *TRACE, "--min-ratio", "2"],
    "gate": [TRACED, "--trace", f"{TESTDATA}/trace/s260k"],
    "replay-h2o": [TRACED, *TRACE, "--budget", "0.5"],
    "replay-quant": [TRACED, *TRACE, "--k", "q8_0", "--v", "q8_0"],
    "replay-lossless": [TRACED, *TRACE, "--mode", "store"],
    "replay-blend": ["--full", TRACED, "--chunks", TRACED],
    "replay-mlp": [TRACED, "--weights", f"{TESTDATA}/none.bin"],
    "analyze": [STATE],
    "bench": [STATE, "--rounds", "1"],
    "train": [STATE, "-o", "out.kvp"],
    "plan check": ["plan.json", "--snapshot", TRACED],
}
OPTIONS = {"--from": "nonsense", "--raw": "nonsense", "--order": "nonsense", "--model": "missing", "--kv-heads": "31",
           "--head-dim": "31", "--layout": "nonsense", "--input-dtype": "nonsense", "--rotated": "nonsense",
           "--batch": "nonsense", "--base": "missing", "--profile": "missing", "--max-bytes": "nonsense"}
# Words that messages use for options which they do not name.
SAYS = {"--kv-heads": "heads", "--head-dim": "heads"}


def run(*words):
    return subprocess.run([KVTOOL, *words], capture_output=True, text=True)


def main():
    declared = {one["command"] for one in json.loads(run("__options").stdout)
                if any("--k-pattern" in option["names"] for option in one["options"])}
    assert declared == set(LINES), f"no line here: {declared ^ set(LINES)}"
    assert run("replay", "evict", TRACED, *TRACE, "--policy", "h2o", "--budget", "0.5", "--plan-out", "plan.json").returncode == 0
    for command, line in LINES.items():
        for option, value in OPTIONS.items():
            if (command, option) == ("gate", "--from"):  # gate's --from names a report, not a format
                continue
            done = run(*command.split(), *line, option, value)
            told = option in done.stderr or value in done.stderr or SAYS.get(option, option) in done.stderr
            if done.returncode == 0 or not told:
                print(f"{command} {option} {value}: exit {done.returncode}, {done.stderr.strip() or 'nothing is said'}")
    print(f"{len(OPTIONS)} options of {len(LINES)} commands")


main()
