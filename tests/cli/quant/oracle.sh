# The cost of quantised caches is compared with formulas in numpy.
$PYTHON "$SHARED_SUITE/oracle.py" make
types="--k q8_0,q4_1,int8_per_token_head,kivi2 --v q8_0,q4_1,int8_per_token_head,kivi2 --rows 0 -q"
"$KVTOOL" replay-quant snapshot.npz --trace trace.npz $types --json-out report.json
$PYTHON "$SHARED_SUITE/oracle.py" compare report.json
types="--k q8_0,q4_1 --v q4_1,kivi2 --rows 0 -q"
"$KVTOOL" replay-quant snapshot.npz --trace trace.npz $types --engine-q exact --hadamard no --json-out report.json -f
$PYTHON "$SHARED_SUITE/oracle.py" compare report.json
"$KVTOOL" replay-quant snapshot.npz --trace trace.npz $types --keep-first 4 --keep-last 20 --json-out report.json -f
$PYTHON "$SHARED_SUITE/oracle.py" compare report.json
