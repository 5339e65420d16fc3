# --figure-out writes the figure of a page as SVG and as PDF, with a self-contained caption.
name='a<script>alert(1)<&"(.bin'
cp "$TESTDATA/trace/s260k.seq0.bin" "$name"
trace=$TESTDATA/trace/s260k
replay() { "$KVTOOL" replay-h2o "$name" --trace "$trace" --prompt-tokens 64 --target-ratio 2,4 -q "$@" > table; }
replay --figure-out loss.svg
"$PYTHON" "$SHARED_SUITE/check_svg.py" loss.svg
"$PYTHON" "$SHARED_SUITE/figure_text.py" loss.svg | sed "s|$TESTDATA|*|g; s|kvtool 0.*|VERSION|"
grep -c '<script>' loss.svg || true
replay --figure-out loss.pdf && head -c 8 loss.pdf && echo
LC_ALL=C grep -c '[^ -~]' loss.pdf || true
replay --figure-out again.pdf && cmp loss.pdf again.pdf && echo "the same bytes"
replay --figure-out again.pdf || echo "exit $?"
"$KVTOOL" diff "$name" "$name" --kv-heads 4 --figure-out same.svg -q && ls same.svg
"$KVTOOL" bench "$name" --kv-heads 4 --level fast --rounds 1 --deterministic --figure-out bench.pdf -q && head -c 8 bench.pdf && echo
# For several files it shows the first, and says so.
cp "$name" second.bin
"$KVTOOL" inspect second.bin "$name" --kv-heads 4 --figure-out first.svg -q > text
"$PYTHON" "$SHARED_SUITE/figure_text.py" first.svg | sed "s|kvtool 0.*|VERSION|"
