# A small record may stand for a large state: one object a hundred thousand times. --max-bytes is the limit, as for
# decompress.
truncate -s 1M zeros
"$KVTOOL" store add -q forged zeros --from opaque
"$KVTOOL" store add -q sound zeros --from opaque
cat > forge.py <<'PY'
import json, sqlite3, struct, subprocess, sys

kvtool = sys.argv[1]
path, times, size = "forged/states/00000001.kvs", 100_000, 1 << 20
record = open(path, "rb").read()
piece = record.index(struct.pack("<QI", size, 1)) + 12  # bytes of the extent, objects
one = record[piece:piece + 40]
body = bytearray(record[:piece] + one * times + record[piece + 40:-8])
struct.pack_into("<QI", body, piece - 12, size * times, times)
for at in [i for i in range(piece - 12) if body[i:i + 8] == struct.pack("<Q", size)]:
    struct.pack_into("<Q", body, at, size * times)  # of the source, and of its file
def hashed(data):
    open("bytes", "wb").write(data)
    said = subprocess.run([kvtool, "store", "add", "-q", "hashes", "bytes", "--from", "opaque", "--json"], check=True, capture_output=True)
    return int(json.loads(said.stdout)["results"][0]["inputs"][0]["xxh3"], 16)
record = bytes(body) + struct.pack("<Q", hashed(body))
open(path, "wb").write(record)
value = hashed(record)
index = sqlite3.connect("forged/index.sqlite")
index.execute("update states set record = ?, record_hash = ?, source = ?", (len(record), value - (value >> 63 << 64), size * times))
index.commit()
PY
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
"$PYTHON" forge.py "$KVTOOL"
"$KVTOOL" store list forged --json | jq -c '.results[0].states[] | [.name, .source_bytes]'
ulimit -t 60
"$KVTOOL" store get forged zeros -o out --max-bytes 64MiB || echo "exit $?"
("$KVTOOL" store get forged zeros -c --max-bytes 64MiB 2>&- || echo "exit $?" >&2) | wc -c
[ ! -e out ]
(ulimit -f 4096; "$KVTOOL" store get -q forged zeros -o out --max-bytes 1TiB 2> said || echo "exit $?: $(grep -o 'File too large' said)")
[ ! -e out ]
# Without the option, the size of the store is the limit.
"$KVTOOL" store get forged zeros -o out 2> said || echo "exit $?: $(sed 's/ [0-9]* bytes/ N bytes/; s/holds, [0-9]*/holds, N/; s/[0-9]* allows/N allows/' said)"
("$KVTOOL" store get forged zeros -c 2>&- || echo "exit $?" >&2) | wc -c
[ ! -e out ]
"$KVTOOL" store verify forged --max-bytes 1MiB
"$KVTOOL" store verify forged --max-bytes 1000 || echo "exit $?"
"$KVTOOL" store verify forged --repair --max-bytes 1000 || echo "exit $?"
"$KVTOOL" store get -q sound zeros -o out --max-bytes 1MiB && cmp out zeros
# The limit holds for MNN's container, too.
head -c 1000000 /dev/zero | "$KVTOOL" frame encode -q --dtype f16 - -o zeros.gear
"$KVTOOL" frame decode --dtype f16 zeros.gear -o values --max-bytes 999999 || echo "exit $?"
[ ! -e values ]
"$KVTOOL" frame decode -q --dtype f16 zeros.gear -o values --max-bytes 1000000
# The limit also holds for the K and V of an archive.
"$KVTOOL" compress -q "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" -o cache.kvz
for command in "convert cache.kvz --kv-heads 4 --to npz -o part.npz" "analyze cache.kvz" "train cache.kvz --name x -o x.kvp" \
  "decompress cache.kvz --to npz --kv-heads 4 -o part.npz"; do
  "$KVTOOL" $command -q --max-bytes 1KiB 2>&1 || echo "exit $?"
done
ls part.npz x.kvp 2>&- || true
# If the output has the state's own name, it is neither another output nor a file in the store.
rm out && "$KVTOOL" store add -q sound zeros --name out --from opaque
"$KVTOOL" store get sound out --json-out out -f || echo "exit $?"
[ ! -e out ]
"$KVTOOL" store add -q sound zeros --name index.sqlite --from opaque
(cd sound && "$KVTOOL" store get . index.sqlite -f || echo "exit $?")
"$KVTOOL" store verify sound
