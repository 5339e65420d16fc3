# Runs recorded from llama.cpp, and plans applied in it: where the build found the engine, and LLAMA_ENGINE (its
# libraries) and LLAMA_DATA are set.
CAPTURE=$(dirname "$KVTOOL")/kvtool-capture-llama
if [ ! -x "$CAPTURE" ] || [ -z "${LLAMA_ENGINE:-}" ] || [ -z "${LLAMA_DATA:-}" ]; then
  echo "no engine"
  exit 77
fi
"$PYTHON" "$SCRIPTS/check_llama_capture.py" "$KVTOOL" --engine "$LLAMA_ENGINE" --data "$LLAMA_DATA" --program "$CAPTURE" \
  --example "$(dirname "$KVTOOL")/example_apply_plan_llama"
