# No command accepts an option for reading snapshots and ignores it: an absurd value fails, and the message names its
# subject.
"$PYTHON" "$SHARED_SUITE/options_are_read.py"
