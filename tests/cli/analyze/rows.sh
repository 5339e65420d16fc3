# The distribution and the packed report under the original's column names.
dumps="$TESTDATA/golden/mnn/dumps"
run=$(ls -d "$dumps"/case_fp16_h8_l1_fa64)
"$KVTOOL" analyze "$run" -q --distribution --rope-theta 10000 --csv-out rows.csv > text
"$KVTOOL" analyze "$run" -q --packed --csv-out packed.csv >> text
for file in rows.csv packed.csv; do
  head -1 $file | tr -d '\r' | tr ',' '\n' | head -7 | paste -sd' '
  $PYTHON - $file <<'P'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1], newline="")))
assert rows and all(0 < float(row["k_entropy"]) <= 8 and float(row["v_zstd_ratio"]) > 0 for row in rows)
assert all(float(row["k_gear_ratio"]) > 0 and float(row["k_split16_ratio"]) == 0 for row in rows)
print(len(rows), "rows,", len(rows[0]), "columns")
P
done
"$KVTOOL" analyze "$run" -q --packed --distribution --json --deterministic | $VALIDATE
# A row agrees with its definition.
$PYTHON - "$run" <<'P'
import csv, json, math, pathlib, sys
from collections import Counter
row = next(csv.DictReader(open("rows.csv", newline="")))
meta = json.load(open(sorted(pathlib.Path(sys.argv[1]).glob("layer_0/meta_*.json"))[0]))
data = (pathlib.Path(sys.argv[1]) / "layer_0" / meta["k_file"]).read_bytes()
def entropy(data):
    return -sum(n / len(data) * math.log2(n / len(data)) for n in Counter(data).values())
assert int(row["seq_len"]) == meta["seq_len"]
for name, part in (("k_entropy", data), ("k_lo_entropy", data[::2]), ("k_hi_entropy", data[1::2])):
    assert abs(float(row[name]) - entropy(part)) < 1e-9, name
print("entropies agree")
P
