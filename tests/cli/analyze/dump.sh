# --offline-codec writes the documents of MNN's offline experiment from its dumps, for one run and for a folder of runs.
cp -r "$TESTDATA/golden/mnn/offline/dump" .
dump=dump
"$KVTOOL" analyze "$dump"
"$KVTOOL" analyze "$dump" --reports-only --offline-codec adaptive --entry-mode chunked_grouped --online-chunk-seq 48 --online-framing-bytes 8 --offline-json-out got.json --offline-md-out got.md
# Sizes depend on the zstd library; with another version than the goldens' they are close.
jq -S 'del(.dump_dir) | .k_compressed_bytes, .v_compressed_bytes | . > 55000 and . < 70000' got.json
jq -c '[.selected_entries, .aggregate_groups, .online_chunks, .raw_bytes, .converted_fp32_entries]' got.json
head -1 got.md
