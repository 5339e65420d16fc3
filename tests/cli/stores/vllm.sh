# Reads folders of vLLM's connector in all forms; for a root with several prompts, the error asks for one of them.
stores="$TESTDATA/golden/blend/vllm_shared_storage"
cp -r "$stores" prompts
chmod -R u+w prompts
for prompt in f010c48b3ce184a2ff9d7b30a4492282 t_2_h_d mla_t_c; do
  "$KVTOOL" inspect "prompts/$prompt" | grep -E "engine|layer|keys|axes"
done
"$KVTOOL" inspect prompts/t_h_2d || echo "exit $?"
"$KVTOOL" inspect prompts/t_h_2d --head-dim 8 | grep -E "layer|axes"
"$KVTOOL" inspect prompts/t_h_2d --layout 'th(2d)' | grep -E "layer|axes"
"$KVTOOL" inspect prompts || echo "exit $?"
"$KVTOOL" convert -q prompts/f010c48b3ce184a2ff9d7b30a4492282 --kv-heads 2 --to safetensors -o kv.safetensors
"$KVTOOL" inspect kv.safetensors --json | $VALIDATE
