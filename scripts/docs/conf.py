# SPDX-License-Identifier: Apache-2.0
"""Configures Sphinx for a site of the repository's Markdown pages; scripts/docs/build.sh calls it. Unlisted pages,
broken links and anchors without a heading are errors."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "kvtool"
author = "The kvtool authors"
release = re.search(r"^project\(kvtool VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md", "formats/*/FORMAT.md",
    "lib/core/**/FORMAT.md", "lib/store/FORMAT.md", "apps/*/README.md", "testdata/README.md",
]
exclude_patterns = ["build*", "testdata/[!R]*", "**/.*"]
# Headings get the same anchors as on GitHub.
myst_heading_anchors = 6
myst_enable_extensions = []
# Some pages show a language without a highlighter, and truncated blocks of bytes.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

html_theme = "furo"
html_title = f"kvtool {release}"
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False

# Pages in the navigation. A page of docs/ that is in neither list appears under "More".
JOBS = "install cli analyze archive formats eviction advise plans quantisation llama-server-types closed-loop gate gate-ci lossless codec blend weights".split()
PROGRAMS = "python library speed engines/README".split()
OTHERS = sorted({page.stem for page in (ROOT / "docs").glob("*.md")} - set(JOBS) - set(PROGRAMS))


def listed(caption, *pages):
    return "\n\n```{toctree}\n:hidden:\n:glob:\n:caption: " + caption + "\n" + "\n".join(pages) + "\n```\n"


LISTS = (
    listed("Jobs", *(f"docs/{name}" for name in JOBS))
    + listed("Inside programs", *(f"docs/{name}" for name in PROGRAMS))
    + listed("More", *(f"docs/{name}" for name in OTHERS), "CHANGELOG", "CONTRIBUTING", "SECURITY", "apps/*/README",
             "testdata/README")
    + listed("Grammars", "lib/core/archive/FORMAT", "lib/core/frame/FORMAT", "lib/store/FORMAT", "lib/core/codec/*/FORMAT", "formats/*/FORMAT")
)
ENGINES = "\n\n```{toctree}\n:hidden:\n:glob:\n*\n```\n"
REFERENCE = '\n\n<p>The rendered reference: <a href="../api/index.html">kvtool.h, kvtool_study.h and their C++ headers</a>.</p>\n'
KEYS = "\n\n[Every key of every document](json-keys.md).\n" if (ROOT / "docs/json-keys.md").exists() else ""
ADDED = {"README": LISTS, "docs/json": KEYS, "docs/engines/README": ENGINES, "docs/library": REFERENCE}


def add(_, name, source):
    """Adds what only the site needs: lists for its navigation and the link to doxygen's pages."""
    source[0] += ADDED.get(name, "")


def setup(app):
    app.connect("source-read", add)
