# A small file can declare much more than it holds. doctor unpacks up to a limit, and does not call the rest damaged.
"$PYTHON" - <<'PY'
import struct
import zlib

import numpy as np

np.savez_compressed("zeros.npz", k_0=np.zeros((1, 8, 1024, 128), "f4"), v_0=np.ones((1, 8, 1024, 128), "f4"))

# Deflated members that declare more than the default limit are refused by the directory alone; nothing is inflated.
packed = zlib.compress(bytes(5 << 20), 9)[2:-4]
declared = 5 << 20
local, central = b"", b""
for i in range(820):
    name = b"k_%d.npy" % i
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, zlib.crc32(bytes(0)), len(packed), declared, len(name), 0)
    central += b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(local)) + name
    local += b"PK\3\4" + fields + name + packed
with open("bomb.npz", "wb") as file:
    file.write(local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 820, 820, len(central), len(local), 0))
PY
status=0; "$KVTOOL" doctor zeros.npz > told.txt || status=$?; sed -n 2,3p told.txt; echo "exit $status"
status=0; "$KVTOOL" doctor bomb.npz 2> err.txt || status=$?; echo "exit $status"
"$KVTOOL" doctor zeros.npz --max-bytes 1MiB 2>&1 || echo "exit $?"
status=0; "$KVTOOL" doctor zeros.npz --max-bytes 1MiB --json > told.json 2> err.txt || status=$?
jq -c --arg status $status '[$status, .results[0].exit_code // .exit_code, (.results[0] // .).kind, (.results[0] // .).sound.verdict]' told.json
$VALIDATE < told.json
head -c 2000000 /dev/zero | "$KVTOOL" doctor - --max-bytes 1MiB 2>&1 || echo "exit $?"
"$KVTOOL" trace inspect zeros.npz --max-bytes 1MiB 2>&1 || echo "exit $?"
