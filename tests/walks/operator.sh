# SPDX-License-Identifier: Apache-2.0
# The operator of a server has saved a slot, and wants its disk space now and the slot back tomorrow.
follow README.md 'kvtool inspect slot0.bin --kv-heads 4'
said 'llama.cpp'

# The slot is archived and deleted, and restored to where the server looks for it.
mkdir slots archive
cp slot0.bin slots/chat-17.bin
here='s|/var/cache/slots|slots|g; s|/archive/|archive/|g'
follow docs/engines/llama-cpp.md 'kvtool compress /var/cache/slots/chat-17.bin -o /archive/chat-17.kvz' "$here"
said 'identical'
follow docs/engines/llama-cpp.md 'rm /var/cache/slots/chat-17.bin' "$here"
[ "$(stat -c %s archive/chat-17.kvz)" -lt "$(stat -c %s slot0.bin)" ] || fail "the archive is not smaller"
follow docs/engines/llama-cpp.md 'kvtool decompress /archive/chat-17.kvz -o /var/cache/slots/chat-17.bin' "$here"
cmp slot0.bin slots/chat-17.bin
follow docs/engines/llama-cpp.md 'kvtool inspect --model model.gguf chat-17.bin' 's|chat-17|slots/&|'
follow docs/engines/llama-cpp.md 'kvtool verify chat-17.kvz' 's|chat-17|archive/&|'

# Repeating a command destroys nothing; the message says which option would.
STATUS=4 follow docs/engines/llama-cpp.md 'kvtool compress /var/cache/slots/chat-17.bin -o /archive/chat-17.kvz' "$here"
said '-f'

# A disk has damaged a byte: the program says where it is, what it means, and how to get the rest.
STATUS=1 follow docs/archive.md "printf '\\377' | dd of=slot0.kvz bs=1 seek=100000 conv=notrunc status=none; kvtool verify slot0.kvz" \
  's|slot0.kvz|archive/chat-17.kvz|g'
said 'layer 3 K'
said 'KV1103'
follow docs/cli.md 'kvtool explain KV1001' 's|KV1001|KV1103|'
