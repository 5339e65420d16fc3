# The table for people is compared word by word.
$PYTHON "$SHARED_SUITE/make.py" "$TESTDATA/golden/blend/replay"
"$KVTOOL" replay-blend --full full.npz --chunks chunk?.npz --rope-base 1e4 --trace q.npz --ratios 0:1:0.5 \
  --prefill-ms 40 --load-gbps 0.01 --gate 'dev_v_remaining_frac@0.5.mean<=0.2'
