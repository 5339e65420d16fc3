# Every command and every help on narrow and wide terminals, and in a pipe.
export KVTOOL; cp -r "$TESTDATA/frames" frames
"$PYTHON" "$SHARED_SUITE/check_widths.py"
