# A terminal shows a progress line, which Ctrl-C clears.
export KVTOOL
head -c 25165824 /dev/urandom > big.bin
"$PYTHON" "$SHARED_SUITE/check_progress.py"
