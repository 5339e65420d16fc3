#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every link between files of the repository in every Markdown page: the file must exist and be tracked, and
an anchor must name a heading in it. Every page of docs/ must be listed in the README.md of its folder or of docs/.
External links are not followed. README.md must have fewer than 150 lines.

Usage: links.py           the repository
       links.py FOLDER installed pages: every file that they link to must be installed, too
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def prose(text):
    """Returns the text without code, in which brackets are no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def anchors(text):
    """Returns the anchors that GitHub, and the site, give to headings."""
    names = set()
    for heading in re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number, name = 0, slug
        while name in names:
            number += 1
            name = f"{slug}-{number}"
        names.add(name)
    return names


def check_installed(folder):
    wrong, count = [], 0
    for page in sorted(folder.rglob("*.md")):
        # Debian's changelog is a link to a compressed file
        text = "" if page.is_symlink() else page.read_text(encoding="utf-8")
        for link in LINK.findall(prose(text)):
            name = link.partition("#")[0]
            if name and not re.match(r"[a-z]+:", link):
                count += 1
                if not (page.parent / name).exists():
                    wrong.append(f"{page.relative_to(folder)}: {link}: not installed")
    print("\n".join(wrong + [f"{count} links of {folder}"]))
    return 1 if wrong or not count else 0


def link_fault(page, link, tracked, folders):
    """Returns what is wrong with a link of a page; None if nothing is."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if target not in tracked and target not in folders:
        return "no such file in the repository"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text(encoding="utf-8"))):
        return "no such heading"
    return None


def unlisted(pages, links):
    """Returns the pages of docs/ that no README.md of docs/ or of their folder links to."""
    docs = ROOT / "docs"
    listed = {(page.parent, (page.parent / link.partition("#")[0]).resolve())
              for page, link in links if page.name == "README.md"}
    return [page for page in pages
            if docs in page.parents and page != docs / "README.md" and not {(docs, page), (page.parent, page)} & listed]


def main():
    if len(sys.argv) > 1:
        return check_installed(pathlib.Path(sys.argv[1]))
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode:
        print("skipped: not a checkout")
        return 0
    tracked = {ROOT / name for name in listed.stdout.splitlines()}
    folders = {parent for file in tracked for parent in file.parents}
    pages = sorted(file for file in tracked if file.suffix == ".md" and file.exists())
    links = [(page, link) for page in pages for link in LINK.findall(prose(page.read_text(encoding="utf-8")))
             if not re.match(r"[a-z]+:", link)]
    wrong = [f"{page.relative_to(ROOT)}: {link}: {fault}" for page, link in links
             if (fault := link_fault(page, link, tracked, folders))]
    if (length := len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())) > 150:
        wrong.append(f"README.md: {length} lines: what is more than two screens belongs on a page of docs/")
    wrong += [f"{page.relative_to(ROOT)}: no list leads to it: docs/README.md" for page in unlisted(pages, links)]
    print("\n".join(wrong + [f"{len(links)} links of {len(pages)} pages"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
