# SPDX-License-Identifier: Apache-2.0
"""Checks that each given page is balanced, has no script but that of its tables, and loads nothing from
elsewhere."""
import sys
from html.parser import HTMLParser

VOID = {"meta", "rect", "line", "path", "circle"}


class Page(HTMLParser):
    """Every opened element is closed, in order; attributes are known."""

    def __init__(self):
        super().__init__()
        self.stack, self.scripts, self.figures, self.tables = [], 0, 0, 0

    def handle_starttag(self, tag, attributes):
        if tag not in VOID or tag in ("path", "circle", "rect", "line"):
            self.stack.append(tag)
        self.scripts += tag == "script"
        self.figures += tag == "svg"
        self.tables += tag == "table"
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), attributes
        assert not any(name.startswith("on") or name in ("src", "srcset") for name in names), attributes
        assert tag != "script" or not attributes, attributes
        assert tag not in ("img", "link", "iframe", "object"), tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if self.stack and self.stack[-1] == tag:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag


for path in sys.argv[1:]:
    page = Page()
    page.feed(open(path, encoding="utf-8").read())
    page.close()
    assert not page.stack, page.stack
    assert page.scripts <= 1, page.scripts
    print(f"{page.figures} figures, {page.tables} tables")
