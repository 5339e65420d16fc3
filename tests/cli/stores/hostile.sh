# Gives every malicious golden file to every command that reads such files: it is refused (or read, if the manifest
# allows it), without crashes, without running code, and without more memory than the file justifies.
golden="$TESTDATA/golden/blend"
"$PYTHON" "$SHARED_SUITE/read_hostile.py" "$KVTOOL" "$golden"
