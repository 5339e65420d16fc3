# Every malicious file of the goldens through every command that reads such files: refused (or, where the
# manifest allows it, read), never a bug, never code run, never more memory than the file is worth.
golden="$TESTDATA/golden/blend"
"$PYTHON" "$SHARED_SUITE/read_hostile.py" "$KVTOOL" "$golden"
