# A progress line on a terminal, and what Ctrl-C leaves of it.
export KVTOOL
head -c 25165824 /dev/urandom > big.bin
"$PYTHON" "$SHARED_SUITE/check_progress.py"
