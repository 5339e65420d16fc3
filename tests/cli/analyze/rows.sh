# --distribution and --packed report under the column names of MNN's experiment.
dumps="$TESTDATA/golden/mnn/dumps"
run=$(ls -d "$dumps"/case_fp16_h8_l1_fa64)
"$KVTOOL" analyze "$run" -q --distribution --rope-theta 10000 --csv-out rows.csv > text
"$KVTOOL" analyze "$run" -q --packed --csv-out packed.csv >> text
for file in rows.csv packed.csv; do
  head -1 $file | tr -d '\r' | tr ',' '\n' | sed -n 1,7p | paste -sd' '
  $PYTHON - $file <<'P'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1], newline="")))
assert rows and all(0 < float(row["k_entropy"]) <= 8 and float(row["v_zstd_ratio"]) > 0 for row in rows)
assert all(float(row["k_gear_ratio"]) > 0 and float(row["k_split16_ratio"]) == 0 for row in rows)
print(len(rows), "rows,", len(rows[0]), "columns")
P
done
"$KVTOOL" analyze "$run" -q --packed --distribution --json --deterministic | $VALIDATE
# numpy computes the same figures for one row.
"$PYTHON" "$SHARED_SUITE/check_rows.py" "$run"
