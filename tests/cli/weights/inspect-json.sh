cd "$TESTDATA/golden/infinilm"
"$KVTOOL" weights inspect --stats --json -q pth/full_f5_fp32_trainer.pth | $VALIDATE
"$KVTOOL" weights inspect --json -q bin_bad/has_bias_2.bin | $VALIDATE
"$KVTOOL" weights inspect --json -q bin/special_f2_as_fp16.bin --stats | jq -c '.results[0] | [.header.num_layers, .blocks[0].offset, .blocks[0].weight_stats.nan_count, .blocks[0].weight_stats.infinite_count]'
"$KVTOOL" weights inspect --json -q pth/full_f5_fp32_trainer.pth | jq -c '.results[0] | [.shares.weight_bytes, .shares.untrained_prefixes, .header.container]'
