# Arrays that do not describe their axes are read by options, which the messages suggest.
"$PYTHON" -c 'import numpy' 2>&- || { echo "needs numpy"; exit 77; }
"$PYTHON" "$SHARED_SUITE/axes.py" "$TESTDATA/trace"
show() { "$KVTOOL" inspect "$@" | grep -E 'layer|note' || true; }
show gap.npz
show paged.npy
show paged.npy --layout 2bthd
show kv5.npy
show kv5.npy --layout 2ltc
show kv5.npy --layout 2lthd
show kt.npz
