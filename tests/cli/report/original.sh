# The summary that the engine's suite wrote, as a page and as JUnit.
s="$TESTDATA/golden/mnn/gate/suite/summary.json"
[ -f "$s" ] || exit 0
cp "$s" summary.json
"$KVTOOL" report summary.json --html-out page.html --junit-out gate.xml > /dev/null
grep -c '<b>Fail</b>' page.html
if grep -E '<script|https?://[^w]|@import|url\(' page.html; then echo "the page reaches out"; fi
"$PYTHON" - <<'EOF'
import json
import xml.etree.ElementTree as tree
from html.parser import HTMLParser

rows = json.load(open("summary.json"))["rows"]
root = tree.parse("gate.xml").getroot()
assert [suite.get("name") for suite in root] == [row["case"] for row in rows]
for suite, row in zip(root, rows):
    assert (int(suite.get("failures")) > 0) == (not row["overall_pass"]), row["case"]


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""
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
EOF
