# No command accepts an option of reading snapshots and ignores it: a value without sense fails, and the message says of what.
"$PYTHON" "$SHARED_SUITE/options_are_read.py"
