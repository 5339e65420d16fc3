# Pages describe a cache, and where two caches differ; names that look like markup are escaped.
name='a<script>alert(1)<&".bin'
cp "$TESTDATA/trace/s260k.seq0.bin" "$name"
cp "$name" changed.bin
printf '\177' | dd of=changed.bin bs=1 seek=60001 conv=notrunc status=none
"$KVTOOL" inspect "$name" --kv-heads 4 --html-out inspect.html --svg-out inspect > text
"$KVTOOL" inspect "$name" changed.bin --kv-heads 4 --stats --html-out both.html -q > text
"$KVTOOL" analyze "$name" --kv-heads 4 --html-out analyze.html --svg-out analyze -q > text
"$KVTOOL" diff "$name" "$name" --kv-heads 4 --html-out same.html --svg-out same -q
"$KVTOOL" diff "$name" changed.bin --kv-heads 4 --html-out diff.html --svg-out diff -q || echo "exit $?"
"$KVTOOL" convert -q "$name" --kv-heads 4 --to npz --dtype bf16 -o b.npz
"$KVTOOL" diff "$name" b.npz --kv-heads 4 --atol 0.02 --html-out near.html -q || echo "exit $?"
"$PYTHON" "$SHARED_SUITE/check_html.py" inspect.html both.html analyze.html same.html diff.html near.html
"$PYTHON" "$SHARED_SUITE/check_svg.py" */*.svg
ls inspect analyze same diff
# One changed bit is found at its layer and token.
grep -o '<title>layer [0-9]*, token [0-9]*: [0-9][^<]*' diff.html
grep -c 'beyond the tolerance' near.html
grep -l '<script>alert' *.html */*.svg || echo "no name became markup"
"$KVTOOL" diff "$name" changed.bin --kv-heads 4 --html-out diff.html -q || echo "exit $?"
"$KVTOOL" diff "$name" changed.bin --kv-heads 4 --html-out diff.html -qq -f || echo "exit $?"
"$KVTOOL" analyze "$name" --kv-heads 4 --distribution --reports-only --html-out x.html || echo "exit $?"
"$KVTOOL" inspect "$name" --kv-heads 4 --html-out "$name" -f || echo "exit $?"
