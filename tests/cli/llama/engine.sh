# llama.cpp itself restores what kvtool wrote: runs where LLAMA_ENGINE (its libraries) and LLAMA_DATA are set.
if [ -z "${LLAMA_ENGINE:-}" ] || [ -z "${LLAMA_DATA:-}" ]; then
  echo "no engine"
  exit 77
fi
"$PYTHON" "$SCRIPTS/check_llama_restore.py" "$KVTOOL" --engine "$LLAMA_ENGINE" --data "$LLAMA_DATA"
