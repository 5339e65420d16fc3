# --csv writes the rows of results: columns have the names of fields, numbers are exact, and each row names its input.
s="$TESTDATA/trace/s260k.seq0.bin"
cp "$s" slot.bin; "$KVTOOL" compress slot.bin -o slot.kvz -q
"$KVTOOL" inspect slot.bin slot.kvz --kv-heads 4 --csv - | cut -d, -f1-9
"$KVTOOL" diff slot.bin slot.kvz --csv diff.csv --json-out diff.json
head -1 diff.csv | tr -d '\r' | tr , '\n' | sed -n 1,8p
"$KVTOOL" replay-h2o slot.bin --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 --policy window,h2o --budget 0.5 --csv h2o.csv \
  --json-out h2o.json -q
"$PYTHON" -c "
import csv, json
rows = list(csv.DictReader(open('h2o.csv', newline='')))
runs = json.load(open('h2o.json'))['results'][0]['runs']
layers = json.load(open('diff.json'))['results'][0]['layers']
print([int(row['v.values']) == layer['v']['values'] for row, layer in zip(csv.DictReader(open('diff.csv', newline='')), layers)])
print([row['policy'] for row in rows], [float(row['mean_ratio']) == run['mean_ratio'] for row, run in zip(rows, runs)],
      [float(row['evicting.mass.mean']) == run['evicting']['mass']['mean'] for row, run in zip(rows, runs)])"
# A document without a list of rows is one row; one without inputs has no column for them.
"$KVTOOL" verify slot.kvz --csv - | cut -d, -f1,3,4
"$KVTOOL" formats --csv - | sed -n 1,2p
# A stream takes one document, and no existing file is overwritten.
try() { "$KVTOOL" "$@" || echo "status $?"; }
try verify slot.kvz --csv - --json > /dev/null
try diff slot.bin slot.kvz --csv slot.bin
try diff slot.bin slot.kvz --csv diff.csv
# Standard output under another name, mixed with bytes of a state, and with only rows.
try verify slot.kvz --csv /dev/stdout | wc -l
try verify slot.kvz --csv /dev/stdout --json > /dev/null
try verify slot.kvz --csv - -qq
"$KVTOOL" store add -q st slot.bin
try store get st slot.bin -c --csv - > /dev/null
"$KVTOOL" doctor slot.bin --csv - | grep -c next || true
# Foreign names contain no escape sequence and no formula.
name=$(printf '=1+1,\033[31m"x\342\200\256')
cp slot.bin "$name"
"$KVTOOL" inspect "./$name" "$name" --kv-heads 4 --csv - | cut -d, -f1-3
