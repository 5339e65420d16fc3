# SPDX-License-Identifier: Apache-2.0
"""Names every use of the gate's action in the example workflows, and fails at inputs or outputs that it does not have."""
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


if __name__ == "__main__":
    main(*sys.argv[1:])
