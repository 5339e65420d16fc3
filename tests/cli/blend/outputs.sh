# The page is self-contained; indices are written to a file; outputs are not overwritten without -f.
$PYTHON "$SHARED_SUITE/make.py" "$TESTDATA/golden/blend/replay"
run() { "$KVTOOL" replay-blend --full full.npz --chunks chunk?.npz --rope-base 1e4 --trace q.npz "$@"; }
run --json --detail --indices-out hkvd.npy --html-out page.html > out.json
$VALIDATE < out.json
jq -c '.results[0] | .selection.indices, .selection.indices_file, .curve[0].indices, (.layers[1].dev_v.tokens | length)' out.json
$PYTHON -c 'import numpy; a = numpy.load("hkvd.npy"); print(a.dtype, a.tolist())'
grep -c '<svg' page.html
grep -o '<h2>[^<]*' page.html
if grep -E '<script .|<link|https?://[^w]|@import|url\(' page.html; then echo "the page reaches out"; fi
run --html-out page.html > table || echo "exit $?"
run --html-out page.html -f > table
# The question need not be among the chunks, because it is always recomputed.
"$KVTOOL" replay-blend --full full.npz --chunks chunk[0-3].npz --suffix-len 6 --rope-base 1e4 --json | jq -c '.results[0] | .tokens.covered, .selection.indices'
# --blended-out writes the blended cache in any format. Up to the check layer all of its rows are recomputed, so a
# second blend finds no deviation there.
run --blended-out blended.npz --to npz > table
"$KVTOOL" replay-blend --full full.npz --old blended.npz --old-rope global --chunk-lens 4,18,18,14,6 --json |
  jq -c '[.results[0].layers[] | .dev_v.sum | . * 1000 | round]'
jq -c '.results[0] | [.curve[] | select(.recomputed_fraction == 0.16) | .layers[].dev_v_remaining | . * 1000 | round]' out.json
run --blended-out wrong.npz --to gguf > table || echo "exit $?"
