# Tests --offline-codec legacy and adaptive with every scope, and the reasons for skipped entries.
cp -r "$TESTDATA/golden/mnn/offline/dump" .
dump=dump
run() { "$KVTOOL" analyze "$dump" -q --json --deterministic --offline-codec "$@" | $VALIDATE > /dev/null
        "$KVTOOL" analyze "$dump" -q --json --deterministic --offline-codec "$@" | jq -c '.results[0] | .offline | [.codec_mode, .selected_layers, .selected_entries, .skip_reasons, .k_hi_predictors]'; }
run legacy
run adaptive --strict-fp16 --bitshuffle --scope layer_ids --layer-ids 0,2 --min-seq-len 2
run adaptive_v22 --scope layer_range --layer-start 1 --stage decode --k-hi-predictors xor_seq,raw
run adaptive --scope layer_ids --layer-ids 7
