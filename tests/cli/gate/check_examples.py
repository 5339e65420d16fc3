# SPDX-License-Identifier: Apache-2.0
"""Lists every use of the gate's action in the example workflows, and fails if one has an input or output that the
action lacks."""
import pathlib
import re
import sys

import yaml


def main(github):
    folder = pathlib.Path(github)
    action = yaml.safe_load((folder / "actions/gate/action.yml").read_text())
    version = action["inputs"]["version"]["default"]
    for file in sorted((folder / "workflows-examples").glob("*.yml")):
        text = file.read_text()
        uses = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]
                if "actions/gate@" in step.get("uses", "")]
        assert len(uses) == 1, f"{file.name} uses the action {len(uses)} times"
        given = uses[0]["with"]
        unknown = set(given) - set(action["inputs"])
        assert not unknown, f"{file.name}: no such inputs: {unknown}"
        assert "config" in given, f"{file.name}: no config"
        assert given.get("version", version) == version and uses[0]["uses"].endswith("@v" + version), f"{file.name}: version"
        for output in re.findall(r"steps\.gate\.outputs\.(\w+)", text):
            assert output in action["outputs"], f"{file.name}: no such output: {output}"
        print(f"{file.name}: {' '.join(sorted(given))}" + (f" arguments {given['arguments']}" if "arguments" in given else ""))


def check_page(github):
    """The block on the page uses the files and names of the workflow that the page says to copy."""
    folder = pathlib.Path(github)
    page = (folder.parent / "docs/gate-ci.md").read_text()
    shown = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.S).group(1))[0]
    workflow = yaml.safe_load((folder / "workflows-examples/kv-gate.yml").read_text())
    [step] = [step for step in workflow["jobs"]["gate"]["steps"] if step.get("id") == "gate"]
    assert shown["uses"] == step["uses"], "gate-ci.md: another action"
    for key, value in shown["with"].items():
        assert step["with"][key] == value, f"gate-ci.md: {key} is {value}, in the workflow {step['with'][key]}"
    for name in re.findall(r"ci/[\w-]+\.json", page):
        assert name in step["with"].values(), f"gate-ci.md: {name} is in no input of the workflow"


if __name__ == "__main__":
    main(*sys.argv[1:])
    check_page(*sys.argv[1:])
