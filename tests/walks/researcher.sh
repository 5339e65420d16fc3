# SPDX-License-Identifier: Apache-2.0
# A researcher has a cache from transformers and queries in arrays, and wants a plan, and the frontier of error against
# bytes.
follow docs/formats.md 'kvtool convert slot0.bin --model model.gguf --to torch -o hf.pt'
follow docs/formats.md 'kvtool inspect hf.pt'
said '[batch, head, token, dim]'
follow docs/analyze.md 'kvtool analyze slot0.bin --kv-heads 4' 's|slot0.bin --kv-heads 4|hf.pt|'
said 'best model'
follow docs/formats.md 'kvtool convert hf.pt --to llama-state --model model.gguf -o again.bin'
follow docs/formats.md 'kvtool diff slot0.bin again.bin --model model.gguf'
said 'identical'

follow docs/eviction.md 'kvtool replay evict trace/s260k.seq0.bin --trace trace/s260k --prompt-tokens 128 --policy window,streaming,h2o,tova,snapkv --snapkv-window 16 --budget 0.5,0.25 --html-out frontier.html'
for policy in streaming h2o tova snapkv; do said "$policy"; done
page frontier.html
follow docs/advise.md 'kvtool advise run/ --min-ratio 4 --plan-out plan.json --html-out advice.html' \
  's|run/|trace/s260k.seq0.bin --trace trace/s260k --prompt-tokens 64|'
said 'eviction alone: 4.'
page advice.html
follow docs/plans.md 'kvtool plan check plan.json --snapshot trace/s260k.seq0.bin --kv-heads 4'
said 'sound'
