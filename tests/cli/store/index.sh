# A forged index has other tables, or pages that refer to each other in circles. The command ends promptly, and the
# store can be repaired.
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
"$KVTOOL" store add -q sound "$state" --name save
fresh() { rm -rf s; cp -r sound s; }
says() { "$KVTOOL" store "$@" >/dev/null 2>said && echo "accepted: $*" || echo "exit $?: $(head -1 said)"; }
mends() { says verify s; "$KVTOOL" store verify -q s --repair && "$KVTOOL" store get -q s save -c | cmp - "$state"; }
ulimit -t 60
fresh; "$PYTHON" - <<'PY'
import sqlite3
index = sqlite3.connect("s/index.sqlite")
index.execute("create table more(a, x text generated always as (hex(zeroblob(400000000))))")
index.commit()
PY
says list s; mends
fresh; "$PYTHON" - <<'PY'
import sqlite3
index = sqlite3.connect("s/index.sqlite")
index.execute("drop index states_by_guide")
index.commit()
PY
says list s; mends
# Copies of a table's root page whose children are all the next copy: endless rows.
cat > circles.py <<'PY'
import os, sqlite3, struct, sys
table, rows = sys.argv[1:]
index = sqlite3.connect("s/index.sqlite")
page_size = index.execute("pragma page_size").fetchone()[0]
if table == "objects":
    index.executemany("insert into objects select ?, pack, offset, stored, raw, level from objects limit 1", [(os.urandom(32),) for _ in range(int(rows))])
elif table == "states_by_guide":
    rest = "name, added, format, model, geometry, tokens, layers, source, hash, own, record, record_hash, level, guide"
    index.executemany(f"insert into states select ?, {rest} from states where state = 1", [(n,) for n in range(2, 2 + int(rows))])
else:
    index.executemany("insert into packs values(?, 1)", [(n,) for n in range(1000, 1000 + int(rows))])
index.commit()
root = index.execute("select rootpage from sqlite_schema where name = ?", (table,)).fetchone()[0]
index.close()
data = bytearray(open("s/index.sqlite", "rb").read())
pages, begin = len(data) // page_size, (root - 1) * page_size
page = data[begin:begin + page_size]
assert page[0] in (2, 5), page[0]
cells = struct.unpack_from(">H", page, 3)[0]
places = [8] + [struct.unpack_from(">H", page, 12 + 2 * i)[0] for i in range(cells)]
leaf = struct.unpack_from(">I", page, 8)[0]
depth = 12
def pointing(to):
    made = bytearray(page)
    for place in places:
        struct.pack_into(">I", made, place, to)
    return made
data[begin:begin + page_size] = pointing(pages + 1)
for level in range(depth):
    data += pointing(pages + 2 + level if level + 1 < depth else leaf)
struct.pack_into(">I", data, 28, pages + depth)
open("s/index.sqlite", "wb").write(data)
PY
fresh; "$PYTHON" circles.py objects 3000; says stats s; mends
fresh; "$PYTHON" circles.py states_by_guide 3000; says add s "$state" --name other; mends
fresh; "$PYTHON" circles.py packs 3000; mends
