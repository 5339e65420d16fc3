#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Validates JSON documents on stdin (one, an array, or JSON Lines) against the schema each one names."""
import json
import os
import subprocess
import sys

import jsonschema


def main():
    text = sys.stdin.read()
    try:
        documents = json.loads(text)
    except json.JSONDecodeError:
        documents = [json.loads(line) for line in text.splitlines()]
    schemas = {}
    for document in documents if isinstance(documents, list) else [documents]:
        name = document["schema"]
        if name not in schemas:
            schemas[name] = json.loads(subprocess.check_output([os.environ["KVTOOL"], "schema", name]))
            jsonschema.Draft202012Validator.check_schema(schemas[name])
            # An identifier that is not a URL: jsonschema 4.10 would look for "#/$defs/..." below it.
            del schemas[name]["$id"]
        jsonschema.Draft202012Validator(schemas[name]).validate(document)
    print("valid")


main()
