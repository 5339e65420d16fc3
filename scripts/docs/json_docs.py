#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a page with every key of the JSON documents, from the schemas that the program prints. The site has the page;
the repository does not, because it would repeat every sentence of the field tables.

  json_docs.py KVTOOL FILE      writes the page
  json_docs.py KVTOOL --check   fails if a schema does not describe a property, or the page lacks a document
"""
import json
import pathlib
import subprocess
import sys

HEAD = "# Keys of the JSON documents\n\nPaths go into arrays without saying so. [What holds for all documents](json.md).\n"


def schema(kvtool, name):
    return json.loads(subprocess.check_output([kvtool, "schema", name], text=True))


def resolved(root, node):
    while "$ref" in node:
        target = root
        for part in node["$ref"][2:].split("/"):
            target = target[part]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    return node


def type_of(node):
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    if "enum" in node:
        return ", ".join(f"`{json.dumps(value)}`" for value in node["enum"])
    named = node.get("type", "")
    return " or ".join(named) if isinstance(named, list) else named


def keys(root, node, path=""):
    """Yields (path, type, description) of every key below a schema."""
    node = resolved(root, node)
    for choice in node.get("anyOf", []) + node.get("oneOf", []) + node.get("allOf", []):
        yield from keys(root, choice, path)
    if "items" in node:
        yield from keys(root, node["items"], path)
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        child = resolved(root, child)
        yield below, type_of(child), child.get("description", "")
        yield from keys(root, child, below)


def undescribed(root, node, path=""):
    """Yields the path of every property that a schema declares without a description; "if" and "not" declare none."""
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if not resolved(root, child).get("description"):
            yield below
        yield from undescribed(root, child, below)
    for name, child in node.get("$defs", {}).items():
        yield from undescribed(root, child, f"$defs.{name}")
    inner = [node.get(word) for word in ("items", "additionalProperties")] + list(node.get("patternProperties", {}).values())
    for child in inner + node.get("anyOf", []) + node.get("oneOf", []) + node.get("allOf", []):
        if isinstance(child, dict):
            yield from undescribed(root, child, path)


def without_words(kvtool):
    """Yields the same for all schemas, each path once."""
    for name in subprocess.check_output([kvtool, "schema"], text=True).split():
        one = schema(kvtool, name)
        yield from dict.fromkeys(f"{one['$id']}: {path}" for path in undescribed(one, one))


def table(rows):
    seen = set()
    for path, kind, text in rows:
        if path in seen:
            continue
        seen.add(path)
        yield "| `{}` | {} | {} |".format(path, kind.replace("|", "\\|"), text.replace("|", "\\|"))


def page(kvtool):
    lines, files = [HEAD], []
    names = subprocess.check_output([kvtool, "schema"], text=True).split()
    schemas = {name: schema(kvtool, name) for name in names}
    envelope = schemas["failure"]
    lines += ["## The envelope\n", "| key | type | what it says |", "|---|---|---|"]
    lines += [row.replace("failure/2", "NAME/2") for row in table(keys(envelope, envelope)) if not row.startswith("| `results.")]
    for name, one in schemas.items():
        if one["$id"].endswith("/1"):
            files.append(f"- `{name}`: {one.get('title', '')}")
        elif name != "failure":
            lines += [f"\n## {name}\n", f"A result of `{one['title']}`.\n", "| key | type | what it says |", "|---|---|---|"]
            lines += table(keys(one, one["$defs"]["result"]))
    lines += ["\n## Files that commands read and write\n", *files]
    return "\n".join(lines) + "\n"


def check(text, kvtool):
    wrong = [f"{place} has no description: its table of fields, or its schema in apps/kvtool/documents/schema, must give one"
             for place in dict.fromkeys(without_words(kvtool))]
    wrong += [f"the page has no table of {name}" for name in subprocess.check_output([kvtool, "schema"], text=True).split()
              if name != "failure" and not any(mark in text for mark in (f"\n## {name}\n", f"\n- `{name}`: "))]
    print("\n".join(wrong) or f"{text.count(chr(10))} lines describe every key")
    return 1 if wrong else 0


def main():
    kvtool, target = sys.argv[1:3]
    text = page(kvtool)
    if target == "--check":
        return check(text, kvtool)
    pathlib.Path(target).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
