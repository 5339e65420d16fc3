# The caption of a figure names its model, layers and budgets, and notes say what nats are calibrated on.
trace=$TESTDATA/trace/kjv3m
evict() { "$KVTOOL" replay evict "$trace.seq0.bin" --trace "$trace" --prompt-tokens 48 --policy window,h2o --budget 0.5,0.25 "$@"; }
caption() { grep -o '<desc>.*</desc>' "$1" | sed "s|$TESTDATA/||g; s|kvtool 0.*|VERSION|"; }
# Budgets apply to two of four layers: the dotted targets are the ratios of the whole model.
evict --figure-out some.svg -q 2> /dev/null
caption some.svg
grep -o '<line class="ta"[^>]*><title>[^<]*' some.svg | sed 's/.*x1="\([0-9.]*\)".*<title>/\1 /'
evict 2> /dev/null | grep '^note'
# These captions are for all layers, and for a model that the command line names.
mkdir gpt && cp "$TESTDATA"/trace/s260k* gpt/ && "$PYTHON" -c "print('{}')" > gpt/config.json
"$PYTHON" "$SHARED_SUITE/predicted_kl.py" make
nats() { "$KVTOOL" replay evict snapshot.npz --trace trace.npz --layer-start 0 --trigger-min 1 --policy window,random --budget 0.5,0.2 "$@"; }
nats --figure-out all.svg | grep '^note'
caption all.svg
nats --sensitivity sensitivity.json | grep '^note: expected'
# The losses of an already quantised cache are added to those of eviction.
"$KVTOOL" replay quant "$trace.seq0.bin" --trace "$trace" --k q4_0 --v q4_0 -o quantised.bin -qq 2> /dev/null
"$KVTOOL" replay evict quantised.bin --trace "$trace" --prompt-tokens 48 --policy h2o --budget 0.5 2>&1 > table | sed "s|$TESTDATA/||"
