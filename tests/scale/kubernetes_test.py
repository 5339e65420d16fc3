#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that scripts/scale/kubernetes-job.yaml is valid for several versions of Kubernetes, and that its containers
work.

Usage: kubernetes_test.py KVTOOL

There is no cluster here. The manifest is checked against the schemas that the PyPI package kubernetes-validate
brings, and the command of each container is run as a kubelet would run it: with its environment, for each index, with
folders for its volumes. Two indexes are killed and run again. The second Job must write the answer of one run. Exit
77 without PyYAML.
"""
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import corpus

MANIFEST = pathlib.Path(__file__).resolve().parents[2] / "scripts/scale/kubernetes-job.yaml"
VERSIONS = ["1.29", "1.31", "1.33"]
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def validate(jobs):
    try:
        import kubernetes_validate
    except ImportError:
        print("not validated: pip install kubernetes-validate")
        return
    for job in jobs:
        for version in [*VERSIONS, kubernetes_validate.latest_version()]:
            kubernetes_validate.validate(job, version, strict=True)
        spelt = {**job, "spec": {**job["spec"], "completion": 1}}
        try:
            kubernetes_validate.validate(spelt, VERSIONS[0], strict=True)
        except kubernetes_validate.ValidationError:
            continue
        raise AssertionError("a key that does not exist was taken")
    print(f"valid for Kubernetes {', '.join(VERSIONS)} and {kubernetes_validate.latest_version()}")


def process_of(kvtool, job, volumes, index=None):
    """Returns what a pod of the Job runs: the image's entry point with its arguments, variables replaced and volumes
    mounted."""
    container = job["spec"]["template"]["spec"]["containers"][0]
    env = {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
    for variable in container.get("env", []):
        assert "value" in variable or variable["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
        env[variable["name"]] = variable.get("value", str(index))
    words = [re.sub(r"\$\((\w+)\)", lambda name: env[name[1]], word) for word in container["args"]]
    for mount in container["volumeMounts"]:
        if mount["mountPath"] == "/tmp":
            env["TMPDIR"] = str(volumes[mount["name"]])
            continue
        words = [re.sub(f"^{mount['mountPath']}(?=/)", str(volumes[mount["name"]]), word) for word in words]
    return subprocess.Popen([kvtool, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    try:
        import yaml
    except ImportError:
        print("skipped: there is no PyYAML")
        return 77
    shards, merge = jobs = list(yaml.safe_load_all(MANIFEST.read_text()))
    validate(jobs)
    completions = shards["spec"]["completions"]
    environment = {each["name"]: each.get("value") for each in shards["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["KVTOOL_SHARDS"] == str(completions), "KVTOOL_SHARDS is not what completions says"
    data = next(each for each in shards["spec"]["template"]["spec"]["volumes"] if each["name"] == "data")
    assert data["persistentVolumeClaim"]["readOnly"]
    kvtool, rng = str(pathlib.Path(sys.argv[1]).resolve()), random.Random(1)
    with tempfile.TemporaryDirectory(prefix="kvtool-kubernetes-") as folder:
        inputs = corpus.Corpus(kvtool, folder, 40, 200)
        wanted = inputs.alone("analyze", "--level", "high")
        volumes = {"data": folder, "results": pathlib.Path(folder, "results"), "scratch": pathlib.Path(folder, "scratch")}
        for name in ("results", "scratch"):
            volumes[name].mkdir()
        for index in rng.sample(range(completions), 2):
            pod = process_of(kvtool, shards, volumes, index)
            time.sleep(0.03)
            pod.kill()
            pod.wait()
        statuses = {process_of(kvtool, shards, volumes, index).wait() for index in range(completions)}
        assert statuses == {0, 3}, statuses  # 3: one of the inputs is damaged
        assert process_of(kvtool, shards, volumes, completions).wait() == 2, "an index beyond the last was taken"
        assert process_of(kvtool, merge, volumes).wait() == 3
        same = (volumes["results"] / "merged.json").read_bytes() == wanted[0]
        print(f"{completions} indexes: " + ("the same as one run" if same else "the merged answer is not that of one run"))
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
