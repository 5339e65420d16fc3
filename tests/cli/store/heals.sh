# A state that the store cannot restore does not count as "there already": adding its source again repairs it, and
# every state that shares the object.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" convert -q "$state" --to llama-state --tokens 0:300 -o one.bin
"$KVTOOL" store add -q sound one.bin
fresh() { rm -rf s; cp -r sound s; }
flip() { "$PYTHON" -c 'import os, sys
with open(sys.argv[1], "r+b") as pack:
    at = os.path.getsize(sys.argv[1]) // 2 if len(sys.argv) < 3 else int(sys.argv[2])
    pack.seek(at); byte = pack.read(1)[0]; pack.seek(at); pack.write(bytes([byte ^ 1]))' "$@"; }
says() { sed 's/: [0-9.]* KiB to .*; \([0-9]* damaged\)/: ...; \1/; s/, xxh3.*//' ; }
whole() { "$KVTOOL" store get -q s one.bin -c | cmp - one.bin && "$KVTOOL" store get -q s @1 -c | cmp - one.bin && "$KVTOOL" store verify -q s && echo "whole"; }
# The damage is one bit, the header of an object, a truncated pack, or a missing one.
fresh; flip s/packs/00000001.pack; "$KVTOOL" store verify s 2>&1 || echo "exit $?"
"$KVTOOL" store add s one.bin 2>&1 | says; whole; "$KVTOOL" store add s one.bin 2>&1 | says
fresh; flip s/packs/00000001.pack 30; "$KVTOOL" store add s one.bin 2>&1 | says; whole
fresh; truncate -s -100 s/packs/00000001.pack; "$KVTOOL" store add s one.bin 2>&1 | says
"$KVTOOL" store get -q s one.bin -c | cmp - one.bin
fresh; rm s/packs/00000001.pack; "$KVTOOL" store add s one.bin 2>&1 | says; whole
# If the store is repaired before the source is added again, it lacks the object, and the message says what to do.
fresh; flip s/packs/00000001.pack; "$KVTOOL" store verify s --repair 2>&1 || echo "exit $?"
"$KVTOOL" store add -q s one.bin; whole; "$KVTOOL" store verify s --repair
# The repaired object survives a collection.
"$KVTOOL" store gc -q s; whole
# A grown chat does not build on damaged rows.
fresh; flip s/packs/00000001.pack; "$KVTOOL" store add -q s "$state" --name grown
"$KVTOOL" store get -q s grown -c | cmp - "$state"; "$KVTOOL" store add s one.bin 2>&1 | says; whole
# store watch repairs an object in the same way.
fresh; flip s/packs/00000001.pack; mkdir slots; cp one.bin slots
"$KVTOOL" store watch --slots slots --store s --once --settle-ms 10 2>&1 | says; whole
# A payload with a valid hash that decodes to something else.
fresh; "$PYTHON" - "$KVTOOL" <<'PY'
import json, struct, subprocess, sys
def hashed(data):
    open("bytes", "wb").write(data)
    said = subprocess.run([sys.argv[1], "store", "add", "-q", "hashes", "bytes", "--from", "opaque", "--json"], check=True, capture_output=True)
    return int(json.loads(said.stdout)["results"][0]["inputs"][0]["xxh3"], 16)
path = "s/packs/00000001.pack"
pack = bytearray(open(path, "rb").read())
size = struct.unpack_from("<Q", pack, 16 + 48)[0]
pack[16 + 104 + size // 2] ^= 1
struct.pack_into("<Q", pack, 16 + 56, hashed(pack[16 + 104:16 + 104 + size]))
struct.pack_into("<Q", pack, 16 + 96, hashed(pack[16:16 + 96]))
open(path, "wb").write(pack)
PY
"$KVTOOL" store add s one.bin 2>&1 | says; whole
