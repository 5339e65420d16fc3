# The independent decoder restores the archives that released versions wrote, as the manifest says.
"$PYTHON" -c 'import numpy, zstandard' 2>&- || { echo "python3-numpy or python3-zstandard is missing"; exit 77; }
"$PYTHON" "$SHARED_SUITE/restore_golden.py" "$SCRIPTS" "$TESTDATA/archives"
