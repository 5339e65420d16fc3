# SPDX-License-Identifier: Apache-2.0
"""Checks that each given SVG file is well-formed, describes what it shows, and loads nothing from
elsewhere."""
import sys
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"
for path in sys.argv[1:]:
    root = tree.parse(path).getroot()
    assert root.tag == SVG + "svg" and root.get("role") == "img", path
    assert root.find(SVG + "title").text and root.find(SVG + "desc").text, path
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in {
            "svg", "title", "desc", "style", "rect", "line", "text", "path", "circle"}, element.tag
        assert not any(name.startswith("on") or "href" in name for name in element.attrib), path
    assert "url(" not in root.find(SVG + "style").text, path
print(f"{len(sys.argv) - 1} sound")
