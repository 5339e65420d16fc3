#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves the files of a folder by ranges, as object stores do, with faults that the query of a URL asks for.

range_server.py FOLDER LOG PORT_FILE: writes its port to PORT_FILE, and a line for each request to LOG: status, path,
range and If-Match. Faults (?NAME=N, of the requests of one path and query the N-th, or every N-th where the name says
so):

  key=SECRET changes nothing; without it files below /private answer 403
  busy=N          the first N answers are 503, with Retry-After: 0
  retry_after=S   every answer is 503, with Retry-After: S
  every_cut=N     every N-th answer with a body ends after half of it
  every_reset=N   every N-th answer is cut by a reset of the connection
  change=N from the N-th answer on, another file of the same size, with another tag
  forget=N the same, but the server ignores If-Match
  tag=weak|none   a weak tag, or no tag at all
  whole=1 no ranges: every answer is 200 with the whole file
  wrong=1 the range begins a byte late
  long=1 one byte more than the range
  head=1          HEAD is answered (otherwise 403, as where a URL is signed for GET)
"""
import collections
import email.utils
import http.server
import os
import pathlib
import socket
import struct
import sys
import threading
import urllib.parse

FOLDER, LOG, PORT_FILE = map(pathlib.Path, sys.argv[1:4])
counts = collections.Counter()
lock = threading.Lock()


def parse_range(text, size):
    """Returns the first and the last byte of "bytes=FIRST-LAST" or "bytes=-COUNT"."""
    first, last = text.removeprefix("bytes=").split("-")
    return (max(0, size - int(last)), size - 1) if first == "" else (int(first), min(int(last), size - 1))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def note(self, status):
        with lock, LOG.open("a") as log:
            log.write(f"{status} {urllib.parse.urlsplit(self.path).path} {self.headers.get('Range', '-')} "
                      f"{self.headers.get('If-Match', '-')}\n")

    def answer(self, status, body=b"", **headers):
        self.note(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        self.answer(403)

    def do_GET(self):
        parts = urllib.parse.urlsplit(self.path)
        faults = dict(urllib.parse.parse_qsl(parts.query))
        number = {name: int(value) for name, value in faults.items() if value.isdigit()}
        with lock:
            counts[self.path] += 1
            turn = counts[self.path]
        if parts.path.startswith("/to/"):
            return self.answer(307, Location=parts.path[3:] + "?" + parts.query)
        file = FOLDER / parts.path.lstrip("/")
        if parts.path.startswith("/private/") and faults.get("key") != "hunter2":
            return self.answer(403, b"<Error>AccessDenied</Error>")
        if not file.is_file():
            return self.answer(404, b"nothing here")
        if turn <= number.get("busy", 0):
            return self.answer(503, b"slow down", Retry_After="0")
        if "retry_after" in faults:
            return self.answer(503, b"slow down", Retry_After=faults["retry_after"])
        data, version = file.read_bytes(), 1
        if turn >= number.get("change", number.get("forget", turn + 1)):
            data, version = bytes(255 - byte for byte in data), 2
        tag = {"weak": f'W/"{version}"', "none": None}.get(faults.get("tag"), f'"version-{version}-2"')
        headers = {"ETag": tag} if tag else {"Last_Modified": email.utils.formatdate(1e9 + version, usegmt=True)}
        wanted = self.headers.get("If-Match")
        if wanted and wanted != tag and "forget" not in faults:
            return self.answer(412)
        asked = self.headers.get("Range")
        if "whole" in faults or not asked:
            return self.answer(200, data, **headers)
        first, last = parse_range(asked, len(data))
        if first > last:
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        if "wrong" in faults and first > 0:
            first += 1
        self.send_range(data, first, last, turn, number, headers)

    def send_range(self, data, first, last, turn, number, headers):
        body = data[first:last + 1] + (b"!" if "long" in number else b"")
        self.note(206)
        self.send_response(206)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = number.get("every_cut", 0) and turn % number["every_cut"] == 0
        reset = number.get("every_reset", 0) and turn % number["every_reset"] == 0
        self.wfile.write(body[:max(1, len(body) // 2)] if cut or reset else body)
        if cut or reset:
            self.wfile.flush()
            self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # the client closed the connection on purpose


def main():
    server = Server(("127.0.0.1", 0), Handler)
    beside = PORT_FILE.with_suffix(".part")
    beside.write_text(str(server.server_address[1]))
    os.replace(beside, PORT_FILE)
    server.serve_forever()


if __name__ == "__main__":
    main()
