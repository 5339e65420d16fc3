# Notes say what nats are calibrated on, or why there are none; CSV has the program's own words unchanged.
trace=$TESTDATA/trace/s260k
quant() { "$KVTOOL" replay quant "$@" 2> /dev/null; }
quant "$trace.seq0.bin" --trace "$trace" --k q8_0 --v q8_0 --advise --bytes-per-token 600 | tail -n 5
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
quant run --k q8_0 --v q4_0 --rows 0 --figure-out loss.svg | tail -n 3
grep -o '<desc>.*</desc>' loss.svg | sed "s|kvtool 0.*|VERSION|"
# Nats span powers of ten, so the axis has one tick for each.
grep -o '>[0-9e.-]*</text>' loss.svg | tr -d '\n'; echo
kjv=$TESTDATA/trace/kjv3m
quant "$kjv.seq0.bin" --trace "$kjv" --k q8_0 --v f16 --csv - | cut -d, -f4
