# SPDX-License-Identifier: Apache-2.0
"""Checks that JUnit has the rows of the summary, and that page.html is well-formed with links that
resolve."""
import json
import xml.etree.ElementTree as tree
from html.parser import HTMLParser

rows = json.load(open("summary.json"))["rows"]
root = tree.parse("gate.xml").getroot()
assert [suite.get("name") for suite in root] == [row["case"] for row in rows]
for suite, row in zip(root, rows):
    assert (int(suite.get("failures")) > 0) == (not row["overall_pass"]), row["case"]


class Balance(HTMLParser):
    """Every opened element is closed, in order."""
    void = {"meta", "rect", "line", "path", "circle"}

    def __init__(self):
        super().__init__()
        self.stack, self.ids, self.links = [], set(), set()

    def handle_starttag(self, tag, attributes):
        if tag not in self.void:
            self.stack.append(tag)
        self.ids.add(dict(attributes).get("id"))
        self.links.add(dict(attributes).get("href"))

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag


page = Balance()
page.feed(open("page.html").read())
assert not page.stack, page.stack
assert all(link is None or link[1:] in page.ids for link in page.links)
print("well-formed")
