# The rows of results as CSV: whose columns are the names of fields, whose numbers are exact, and whose inputs have a name.
"$PYTHON" "$SHARED_SUITE/../diff/values_caches.py"
"$KVTOOL" diff a.npz one.npz --layout thd --csv - || echo "status $?"
"$KVTOOL" inspect a.npz one.npz --layout thd --csv inspect.csv -q
cut -d, -f1-6 inspect.csv
"$KVTOOL" inspect a.npz one.npz --layout thd --json -q > inspect.json
"$PYTHON" -c "
import csv, json
rows = list(csv.DictReader(open('inspect.csv', newline='')))
layers = [layer for result in json.load(open('inspect.json'))['results'] for layer in result['layers']]
print(len(rows) == len(layers), all(row['k.dtype'] == layer['k']['dtype'] for row, layer in zip(rows, layers)))"
"$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 --policy window,h2o \
  --budget 0.5 --csv h2o.csv --json-out h2o.json -q
"$PYTHON" -c "
import csv, json
rows = list(csv.DictReader(open('h2o.csv', newline='')))
runs = json.load(open('h2o.json'))['results'][0]['runs']
print([row['policy'] for row in rows], [float(row['ratio']) == run['ratio'] for row, run in zip(rows, runs)])"
"$KVTOOL" verify "$TESTDATA/kvz/nothing.kvz" --csv - || echo "status $?"
# One stream takes one document, and a file is not lost.
"$KVTOOL" diff a.npz a.npz --layout thd --csv - --json || echo "status $?"
"$KVTOOL" diff a.npz a.npz --layout thd --csv a.npz || echo "status $?"
"$KVTOOL" inspect a.npz --layout thd --csv inspect.csv -q || echo "status $?"
