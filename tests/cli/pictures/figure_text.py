# SPDX-License-Identifier: Apache-2.0
"""Prints the title and the caption of a figure."""
import sys
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
print(root.find(SVG + "title").text)
print(root.find(SVG + "desc").text.replace(". ", ".\n"))
shown = [text.text for text in root.iter(SVG + "text")]
words = " ".join(shown).split()
assert all(word in words or len(word) > 40 for word in root.find(SVG + "desc").text.split()), words
