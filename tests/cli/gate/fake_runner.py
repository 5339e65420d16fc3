# SPDX-License-Identifier: Apache-2.0
"""Runs the shell steps of a composite action as a runner of GitHub does, in the current folder.

Usage: fake_runner.py ACTION_FOLDER SERVER [INPUT=VALUE ...]

Steps that use other actions are named with their inputs, not run. The exit status is 1 if a step failed.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml


class Runner:
    def __init__(self, folder, server, inputs):
        self.folder = pathlib.Path(folder).resolve()
        self.action = yaml.safe_load((self.folder / "action.yml").read_text())
        unknown = set(inputs) - set(self.action["inputs"])
        if unknown:
            raise SystemExit(f"no such inputs: {sorted(unknown)}")
        missing = [name for name, one in self.action["inputs"].items() if one.get("required") and name not in inputs]
        if missing:
            raise SystemExit(f"required inputs: {missing}")
        self.inputs = {name: inputs.get(name, one.get("default", "")) for name, one in self.action["inputs"].items()}
        self.github = {"action_repository": "", "repository": "owner/kvtool"}
        self.outputs, self.failed = {}, False
        self.temp = pathlib.Path(tempfile.mkdtemp(dir="."))
        self.env = dict(os.environ, GITHUB_ACTION_PATH=str(self.folder), GITHUB_SERVER_URL=server,
                        GITHUB_SHA="0123456789abcdef0123456789abcdef01234567", RUNNER_TEMP=str(self.temp.resolve()),
                        GITHUB_STEP_SUMMARY=str(pathlib.Path("step-summary.md").resolve()))

    def value(self, name):
        parts = name.split(".")
        if parts[0] == "inputs":
            return self.inputs[parts[1]]
        if parts[0] == "github":
            return self.github[parts[1]]
        assert parts[0] == "steps" and parts[2] == "outputs", name
        return self.outputs.get(parts[1], {}).get(parts[3], "")

    def expand(self, text):
        def one(match):
            return next((value for name in match[1].split("||") if (value := self.value(name.strip()))), "")

        return re.sub(r"\$\{\{ *(.*?) *\}\}", one, str(text))

    def run_shell(self, step):
        files = {name: self.temp / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH")}
        for file in files.values():
            file.write_text("")
        env = dict(self.env, **{name: str(file.resolve()) for name, file in files.items()})
        env.update({name: self.expand(text) for name, text in step.get("env", {}).items()})
        assert step["shell"] == "bash"
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self.expand(step["run"])], env=env)
        pairs = (line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        self.outputs[step.get("id", step["name"])] = dict(pairs)
        for line in files["GITHUB_PATH"].read_text().splitlines():
            self.env["PATH"] = line + os.pathsep + self.env["PATH"]
        if done.returncode != 0:
            print(f"[{step['name']}: exit {done.returncode}]", flush=True)
            self.failed = True

    def run(self):
        for step in self.action["runs"]["steps"]:
            if self.failed and step.get("if") != "always()":
                print(f"[{step['name']}: skipped]", flush=True)
            elif "uses" in step:
                inputs = " ".join(f"{name}={self.expand(text)}" for name, text in step["with"].items())
                print(f"[{step['name']}: {step['uses']} {inputs}]", flush=True)
            else:
                self.run_shell(step)
        for name, output in self.action["outputs"].items():
            print(f"{name}={self.expand(output['value'])}", flush=True)
        return int(self.failed)


if __name__ == "__main__":
    sys.exit(Runner(*sys.argv[1:3], dict(pair.split("=", 1) for pair in sys.argv[3:])).run())
