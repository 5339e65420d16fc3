# No reader of safetensors accepts a header above 100,000,000 bytes: such a file is refused as safetensors, alone and
# in a folder.
make() { "$PYTHON" -c 'import struct, sys
name, length, text = sys.argv[1:]
with open(name, "wb") as file:
    file.write(struct.pack("<Q", int(length)) + text.encode())
    file.truncate(8 + int(length))' "$@"; }
try() { "$KVTOOL" "$@" 2>&1 || echo "exit $?"; }
make large.safetensors 100000001 '{"k.0":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}'
try inspect large.safetensors
try trace inspect large.safetensors
try weights inspect large.safetensors
try doctor large.safetensors
mkdir folder
"$PYTHON" - <<'PY'
import numpy
numpy.savez("cache.npz", k_0=numpy.ones((200, 1, 8), "f4"), v_0=numpy.ones((200, 1, 8), "f4"))
PY
"$KVTOOL" convert cache.npz --to safetensors -o folder/a.safetensors -q
"$KVTOOL" inspect folder -qq
mv large.safetensors folder/b.safetensors
try inspect folder
# The same bytes may be numbers of a file without a header.
make numbers.raw 100000002 '{abc'
try inspect numbers.raw
# A header at the limit is parsed, and the error is in its text.
make cap.safetensors 100000000 '{"k.0":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}'
try inspect cap.safetensors
