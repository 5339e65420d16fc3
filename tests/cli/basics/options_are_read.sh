# Every command that accepts an option for reading snapshots also uses it: an absurd value fails, and the message is
# about that option.
"$PYTHON" "$SHARED_SUITE/options_are_read.py"
