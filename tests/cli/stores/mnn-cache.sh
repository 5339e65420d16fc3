# MNN's packed cache files can be read; their rows equal those of the logical dump.
layer="$TESTDATA/golden/mnn/dumps/case_fp16_h8_l1_fa64/layer_0"
mkdir cache
cp "$layer/moved_k.bin" cache/prompt_0.k
cp "$layer/moved_v.bin" cache/prompt_0.v
raw=mnn-cache:f16:H=2,D=12,T=68,hP=8,lP=1,FA=64
"$KVTOOL" inspect cache --raw $raw
"$KVTOOL" inspect cache --raw $raw --json | $VALIDATE
touch cache/prompt_0_sync.k cache/prompt_0_sync.v
"$KVTOOL" convert -q cache --raw $raw --tokens 0:4 --to mnn-dump -o rows
for part in k v; do cmp <(head -c 192 "$layer/${part}_t0_70.bin") "rows/layer_0/${part}_t0_4.bin"; done
for sizes in H=2,D=12 H=2,D=12,T=68,hP=16,lP=1,FA=64 H=2,D=12,T=200,hP=8,lP=1,FA=64 H=2,D=12,T=68,hP=8,lP=1,FA=64,P=4; do
  "$KVTOOL" inspect cache --raw mnn-cache:f16:$sizes || echo "exit $?"
done
"$KVTOOL" inspect cache --raw mnn-cache || echo "exit $?"
rm cache/prompt_0.v
"$KVTOOL" inspect cache --raw $raw || echo "exit $?"
