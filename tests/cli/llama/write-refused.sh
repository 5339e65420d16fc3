# Contents that a state cannot hold are refused by name before anything is written; losses are reported.
states="$TESTDATA/llamacpp/states"
try() { "$KVTOOL" convert "$@" -o out.bin || echo "status $?"; [ ! -e out.bin ]; }
cp "$states/s260k-v050-shared-prefix.session.bin" two.bin
cp "$states/s260k-v050-f16.seq0.bin" one.bin
cp "$states/kjv3m-v050-q5_1-rotated.seq0.bin" blocks.bin
try two.bin --to llama-state
try two.bin --to llama-state --sequence 7
try one.bin --to llama-session
try one.bin --to llama-state --target-version b5000
try one.bin --to npz --kv-heads 4 --v-order transposed
try blocks.bin --to llama-state --v-order transposed
try blocks.bin --to llama-state --dtype f16
try one.bin --to llama-state --dtype i8
cp "$states/s260k-b3889-f16-vtrans.session.bin" old.bin
"$KVTOOL" convert old.bin --kv-heads 4 --to mnn-dump -o dump
# The engine itself writes dumps without a record of RoPE pairs.
sed -i '/"rope_pairs"/d; s/\("v_file": ".*"\),/\1/' dump/*/meta_*.json
try dump --to llama-state
"$KVTOOL" convert dump --to llama-state --rope-pairs keep -o guess.bin
"$KVTOOL" convert old.bin --to llama-session -o new.bin --json > report.json
$VALIDATE < report.json
jq -c '.results[0] | .not_kept' report.json
