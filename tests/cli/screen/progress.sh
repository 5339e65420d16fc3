# A progress line on a terminal, and that Ctrl-C clears it.
export KVTOOL
head -c 25165824 /dev/urandom > big.bin
"$PYTHON" "$SHARED_SUITE/check_progress.py"
