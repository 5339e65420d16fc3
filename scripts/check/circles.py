#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds include circles between units: a unit is a header with the sources that implement it (of its name, or named on its
"#pragma once  // implemented by" line). Two units that include each other can be neither read nor tested apart.

  check/circles.py [--root ROOT] [--allow N] [--none ROOM ...]

Prints each circle with one include per step. Exit 1 if there are more than --allow grants (0), or any that includes a
unit of a room given by --none.
"""
import argparse
import collections
import os
import pathlib
import re
import sys

TOPS = ("lib", "formats", "apps")
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.M)
NAMED = re.compile(r"^#pragma once  // implemented by (.*)$", re.M)


def read_units(root):
    """Returns the unit of each file, and the units that each unit includes, with an include line as evidence."""
    texts = {path.relative_to(root).as_posix(): path.read_text()
             for top in TOPS for path in sorted((root / top).rglob("*")) if path.suffix in (".h", ".hpp", ".cc")}
    unit_of = {name: os.path.splitext(name)[0] for name in texts}
    for name, text in texts.items():
        named = NAMED.search(text)
        for source in re.findall(r"[\w-]+\.cc", named[1]) if named else []:
            path = os.path.join(os.path.dirname(name), source)
            if os.path.splitext(path)[0] + ".h" not in texts:  # a header with the source's own name comes first
                unit_of[path] = os.path.splitext(name)[0]
    includes = collections.defaultdict(dict)
    for name, text in texts.items():
        for target in INCLUDE.findall(text):
            if target in unit_of and unit_of[target] != unit_of[name]:
                includes[unit_of[name]].setdefault(unit_of[target], f"{name} includes {target}")
    return includes


def find_components(includes):
    """Returns the strongly connected components of more than one unit (Tarjan, without recursion)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in sorted(includes):
        if start in index:
            continue
        work = [(start, iter(sorted(includes[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            unit, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[unit])
                if low[unit] == index[unit]:
                    at = stack.index(unit)
                    component, stack[at:] = stack[at:], []
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(sorted(includes.get(following, ())))))
            elif following in on_stack:
                low[unit] = min(low[unit], index[following])
    return sorted(found)


def shortest_circle(includes, component):
    """Returns the includes of a shortest circle through the first unit of a component that has one."""
    start, members = component[0], set(component)
    came_from, queue = {}, collections.deque([start])
    while queue:
        unit = queue.popleft()
        for following in sorted(set(includes[unit]) & members):
            if following == start:
                steps = [includes[unit][following]]
                while unit != start:
                    steps.append(includes[came_from[unit]][unit])
                    unit = came_from[unit]
                return steps[::-1]
            if following not in came_from:
                came_from[following] = unit
                queue.append(following)
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=".", type=pathlib.Path)
    parser.add_argument("--allow", type=int, default=0, metavar="N", help="circles that there still are")
    parser.add_argument("--none", action="append", default=[], metavar="ROOM", help="a folder that has none any more")
    arguments = parser.parse_args()
    includes = read_units(arguments.root.resolve())
    components = find_components(includes)
    for component in components:
        print(f"{len(component)} units include each other: {', '.join(component)}")
        for step in shortest_circle(includes, component):
            print(f"  {step}")
    wrong = [f"{room}: has to have no circle" for room in arguments.none
             if any(unit.startswith(room + "/") for component in components for unit in component)]
    if len(components) > arguments.allow:
        wrong.append(f"{len(components)} circles, {arguments.allow} allowed")
    print("\n".join(wrong) if wrong else f"{len(components)} circles, as many as are allowed at most")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
