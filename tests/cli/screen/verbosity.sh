# Every command is run with -qq, -q, -v and -vv.
export KVTOOL; cp -r "$TESTDATA/frames" frames
"$PYTHON" "$SHARED_SUITE/check_verbosity.py"
