# A received index may bring a rollback journal: names in it are never followed, and no file elsewhere is touched.
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
"$KVTOOL" store add -q sound "$state" --name save
echo "precious, and longer than the sixteen bytes at the end of a journal" >outside
cp outside before
cat > journal.py <<'PY'
# journal.py STORE NAME: a hot journal without pages, whose end names a super-journal
import struct, sys
store, name = sys.argv[1], sys.argv[2].encode()
index = open(f"{store}/index.sqlite", "rb").read()
page_size, pages = struct.unpack(">H", index[16:18])[0], struct.unpack(">I", index[28:32])[0]
magic = bytes.fromhex("d9d505f920a163d7")
header = (magic + struct.pack(">5I", 0, 1, pages, 512, page_size)).ljust(512, b"\0")
end = struct.pack(">I", 0x40000000 // page_size + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
open(f"{store}/index.sqlite-journal", "wb").write(header + (end if name else b""))
PY
fresh() { rm -rf s; cp -r sound s; }
# Every verb is run as by a reader of received stores; then the repair, after which everything works.
verbs=("list s" "verify s" "get s save -o out -f" "gc s" "prune s --keep-last 9" "add s $state --name other" "verify s --repair"
  "get s save -o out -f")
tries() {
  for verb in "${verbs[@]}"; do
    timeout 20 "$KVTOOL" store $verb >/dev/null 2>said || true
    cmp -s outside before || { echo "$1: '$verb' changed a file outside the store"; cp before outside; }
  done
  cmp out "$state" || echo "$1: not mended"
  rm -f out
}
says() { timeout 20 "$KVTOOL" store list s >/dev/null 2>said && echo "$1: accepted" || echo "$1: exit $?: $(sed -n 1p said)"; }
for name in "$PWD/outside" ../outside s/../outside s/index.sqlite index.sqlite index.sqlite-journal s/packs/00000001.pack; do
  fresh; "$PYTHON" journal.py s "$name"; says "${name#"$PWD"}"
  cmp s/index.sqlite sound/index.sqlite && cmp s/packs/00000001.pack sound/packs/00000001.pack && cmp outside before
done
for name in outside "$PWD/s/index.sqlite" index.sqlite-journal; do fresh; "$PYTHON" journal.py s "$name"; tries "$name"; done
# Too long for a page, so SQLite does not take it for a name.
long=$("$PYTHON" -c 'print("/".join(["."] * 400) + "/outside")')
fresh; "$PYTHON" journal.py s "$long"; tries "a long name"
# The journal is not a regular file, or has another name elsewhere, with and without its first byte.
fresh; ln -s ../outside s/index.sqlite-journal; says "a link"; tries "a link"
fresh; ln -s ../nothing s/index.sqlite-journal; says "a link to nothing"; tries "a link to nothing"; [ ! -e nothing ]
fresh; mkfifo s/index.sqlite-journal; says "a FIFO"; tries "a FIFO"
fresh; mkdir s/index.sqlite-journal; says "a folder"; "$KVTOOL" store verify s --repair || echo "exit $?"
fresh; ln outside s/index.sqlite-journal; tries "a hard link"
head -c 2000 /dev/zero >outside; cp outside before
fresh; ln outside s/index.sqlite-journal; tries "a hard link to zeros"
fresh; "$PYTHON" journal.py s outside; ln s/index.sqlite-journal elsewhere; cp elsewhere as-it-was; tries "a journal with two names"
cmp elsewhere as-it-was
# A write-ahead log and its shared memory are there, or links in their places.
fresh; "$PYTHON" - <<'PY'
import os, shutil, sqlite3
index = sqlite3.connect("s/index.sqlite")
index.execute("PRAGMA journal_mode=WAL")
index.execute("UPDATE states SET name = 'forged'")
index.commit()
for end in "", "-wal", "-shm":
    shutil.copy(f"s/index.sqlite{end}", f"wal{end}")
PY
fresh; for end in "" -wal -shm; do cp "wal$end" "s/index.sqlite$end"; done; says "a write-ahead log"; tries "a write-ahead log"
fresh; cp wal s/index.sqlite; ln -s ../outside s/index.sqlite-wal; ln -s ../outside s/index.sqlite-shm; tries "links for a log"
fresh; cp wal-wal s/index.sqlite-wal; says "a log beside an index without"; tries "a log beside an index without"
# An interrupted change is undone, also by a reader; a huge sparse journal holds none: ignored.
fresh; "$PYTHON" journal.py s ""; says "a cut change"; [ ! -e s/index.sqlite-journal ]
fresh; truncate -s 1T s/index.sqlite-journal; says "holes"; tries "holes"
