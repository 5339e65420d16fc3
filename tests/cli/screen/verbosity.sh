# -qq, -q, -v and -vv on every command.
export KVTOOL; cp -r "$TESTDATA/frames" frames
"$PYTHON" "$SHARED_SUITE/check_verbosity.py"
