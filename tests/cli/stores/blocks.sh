# The program, the independent decoder, and forty lines that use only zstandard read frames in blocks.
"$PYTHON" -c 'import zstandard' || exit 77
frames="$TESTDATA/frames" blocks="$TESTDATA/blocks" seeds="$TESTDATA/fuzz/frame"
"$KVTOOL" inspect "$blocks/keys.kvf"
"$KVTOOL" inspect "$blocks/long.kvf"
"$KVTOOL" diff -q "$frames/keys.kvf" "$blocks/keys.kvf" && echo "the same values"
reference() { "$PYTHON" "$SCRIPTS/decoder/decode_frame.py" "$1" "$2" 2> said || cat said; }
alone() { "$PYTHON" "$SCRIPTS/../tests/core/frame/decode_blocks.py" "$1" "$2"; }
compare() { reference "$1" expected && alone "$2" got && cmp expected got && echo "${2##*/}: the same bytes"; }
compare "$frames/keys.kvf" "$blocks/keys.kvf"
compare "$blocks/long.kvf" "$blocks/long.kvf"
compare "$seeds/content0-level1" "$seeds/content0-blocks"
compare "$seeds/content2-level1" "$seeds/content2-blocks"
