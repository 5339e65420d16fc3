# Every command and every help is printed on narrow and wide terminals, and in a pipe.
export KVTOOL; cp -r "$TESTDATA/frames" frames
"$PYTHON" "$SHARED_SUITE/check_widths.py"
