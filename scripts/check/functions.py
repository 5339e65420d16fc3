#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no function of C++ or Python has more than 60 lines, or a cyclomatic complexity above 20: one, and one
more for each branch, loop, case and logical operator.

Usage: functions.py [ROOT]   exit 1 with one line per function that is too long or too complex
"""
import ast
import pathlib
import re
import sys

MOST_LINES, MOST_PATHS = 60, 20
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
CPP = ("apps/kvtool", "apps/capture-llama", "apps/python", "formats", "lib")
PYTHON = ("apps/python", "scripts", "tests")
# Parts of a source that cannot hold a brace or a branch of code: comments, texts, and numbers with separators.
NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|R\"\((?:.*?)\)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^\s*#(?:[^\n]*\\\n)*[^\n]*", re.S | re.M)
BRANCH = re.compile(r"\b(?:if|for|while|case|catch)\b|&&|\|\||\?(?!\?)")
NOT_FUNCTIONS = re.compile(r"^\W*(?:if|for|while|switch|do|else|try|catch|namespace|enum|extern|class|struct|union)\b")
HEADER = re.compile(r"([\w~:]+(?:\s*operator\W+)?)\s*\(")


def cpp_functions(text):
    """Yields (name, first line, lines, paths) of the functions that no other function contains."""
    code = NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    begin, blocks = 0, []  # start of the current statement; (header, its offset, in a function) per open block
    for found in re.finditer(r"[{};]", code):
        at = found.start()
        if found[0] == "{":
            header = code[begin:at]
            inside = bool(blocks) and blocks[-1][2]
            template = re.sub(r"^\s*template\s*<.*?>\s*(?=\w)", "", header, flags=re.S)
            named = HEADER.search(template)
            is_function = not inside and named is not None and "=" not in template[:named.start()] \
                and not NOT_FUNCTIONS.match(template)
            blocks.append((named and named[1], begin + len(header) - len(header.lstrip()), inside or is_function, is_function))
        elif found[0] == "}" and blocks:
            name, first, _, is_function = blocks.pop()
            if is_function:
                body = code[first:at]
                yield name, code.count("\n", 0, first) + 1, body.count("\n") + 1, 1 + len(BRANCH.findall(body))
        begin = found.end()


def own_parts(node):
    """Yields what a function contains, without the functions in it."""
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, FUNCTION):
            yield part
            yield from own_parts(part)


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, FUNCTION):
            continue
        paths = 1
        for part in own_parts(node):
            paths += isinstance(part, (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler))
            paths += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 0
            paths += 1 + len(part.ifs) if isinstance(part, ast.comprehension) else 0
        yield node.name, node.lineno, node.end_lineno - node.lineno + 1, paths


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    wrong, count = [], 0
    for tops, endings, functions in ((CPP, (".h", ".cc"), cpp_functions), (PYTHON, (".py",), python_functions)):
        for path in sorted(path for top in tops for path in (root / top).rglob("*") if path.suffix in endings):
            name = path.relative_to(root).as_posix()
            for function, line, lines, paths in functions(path.read_text()):
                count += 1
                if lines > MOST_LINES or paths > MOST_PATHS:
                    wrong.append(f"{name}:{line}: {function} has {lines} lines and a complexity of {paths}")
    print("\n".join(wrong) if wrong else f"none of {count} functions is too long")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
