# -qq, -q, -v and -vv on every command.
export KVTOOL
"$PYTHON" "$SHARED_SUITE/check_verbosity.py"
