# The drop-in replacement of InfiniLM's converter gives every golden conversion.
"$PYTHON" "$SHARED_SUITE/converter_golden.py" "$SCRIPTS/make/convert_kv_compressor_pth_to_bin.py" "$TESTDATA/golden"
