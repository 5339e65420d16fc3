# Pictures become files in a folder, next to a name, or under the name itself; existing files and inputs are never
# overwritten.
trace=$TESTDATA/trace/s260k
replay() { "$KVTOOL" replay-h2o "$trace.seq0.bin" --trace "$trace" --prompt-tokens 64 --target-ratio 2 -q "$@" > table; }
replay --svg-out pictures/h2o --html-out page.html
ls pictures/h2o
"$PYTHON" "$SHARED_SUITE/check_svg.py" pictures/h2o/*.svg
replay --svg-out again && diff -r pictures/h2o again && echo "the same bytes"
replay --svg-out again || echo "exit $?"
replay --svg-out again -f && echo replaced
replay --no-quality --svg-out few.svg && ls few*
replay --svg-out - || echo "exit $?"
replay --svg-out table.svg/x 2> /dev/null && ls table.svg/x | sed -n 1p
touch plain && replay --svg-out plain || echo "exit $?"
mkdir out
replay --svg-out out --html-out out/bytes-of-k-and-v-held-at-each-decode-step.svg || echo "exit $?"
ls out
# The picture in docs/eviction.md is what its command draws: the same marks in the same order, whatever the figures.
"$KVTOOL" replay-h2o "$trace.seq0.bin" --trace "$trace" --prompt-tokens 128 \
  --policy window,streaming,h2o,tova,snapkv --snapkv-window 16 --budget 0.5,0.25 --svg-out frontier -q > table
marks() { sed 's/[-0-9.]*[0-9]//g' "$1"; }
diff <(marks "$TESTDATA/../docs/eviction/frontier.svg") <(marks frontier/attention-output-error-against-the-achieved-ratio.svg) &&
  echo "as in the documents"
