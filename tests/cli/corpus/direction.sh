# A manifest never shows bidirectional control characters: names that contain them are escaped, and recognised again.
mkdir d
cp "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" "d/$(printf 'x\342\200\256\330\234\342\201\246\302\233gnp.bin')"
"$KVTOOL" corpus make d -o m.jsonl -q
LC_ALL=C tr -d '\0-\176' <m.jsonl | wc -c
"$KVTOOL" corpus check m.jsonl
"$KVTOOL" inspect --corpus m.jsonl --json -q | jq -r '.results[0].inputs[0].file | explode | map(select(. > 127)) | tostring'
