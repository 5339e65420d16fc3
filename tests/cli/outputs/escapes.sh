# Names are shown with control characters escaped, on one line, in all printed text.
name=$(printf 'a\033[31mred\nkvtool: fine\r\302\233b\342\200\256\342\201\246\330\234\377.bin')
head -c 1000 /dev/zero > "$name"
{
  "$KVTOOL" compress --from opaque "$name"
  "$KVTOOL" compress --from opaque "$name" || true
  "$KVTOOL" verify "$name.kvz" --against "$name"
  "$KVTOOL" decompress "$name.kvz" -f
  "$KVTOOL" inspect "$name.kvz"
  "$KVTOOL" inspect "$name" || true
  "$KVTOOL" inspect "missing $name" || true
  "$KVTOOL" "command $name" || true
  "$KVTOOL" inspect "--flag$name" || true
  "$KVTOOL" convert "$name" --to "$name" -o x || true
  "$KVTOOL" convert "$name" --raw f16:LTHD:1,1,?,2,1 --kv-heads 2 --to npz -o "$name.npz" || true
  "$KVTOOL" convert "$name" --raw f16:2LTHD:2,1,?,2,1 --to npz -o "$name.npz" || true
  "$KVTOOL" inspect "$name.npz" || true
  "$KVTOOL" diff "$name.npz" "$name.npz" || true
  "$KVTOOL" analyze "$name.npz" || true
  "$KVTOOL" bench "$name.npz" || true
  "$KVTOOL" frame encode --dtype f16 "$name" -o "$name.gear" || true
  "$KVTOOL" frame inspect "$name.gear" || true
  "$KVTOOL" frame decode --dtype f16 "$name.gear" -o "$name.values" || true
  "$KVTOOL" weights inspect "$name" || true
  "$KVTOOL" trace inspect "$name" || true
  "$KVTOOL" gate "$name" || true
  "$KVTOOL" gate --engine-logs "$name" || true
  "$KVTOOL" report "$name" || true
  "$KVTOOL" replay-lossless "$name.npz" --mode store || true
  "$KVTOOL" replay-blend --full "$name.npz" --chunks "$name.npz" "$name.npz" || true
  "$KVTOOL" replay-h2o "$name.npz" --trace "$name" || true
  "$KVTOOL" replay-mlp "$name.npz" --weights "$name" || true
  mkdir "tree $name"
  cp "$name" "tree $name/"
  "$KVTOOL" compress --from opaque "tree $name"
  echo changed > "tree $name/$name"
  "$KVTOOL" verify "tree $name.kvz" --against "tree $name" || true
} > said 2>&1
grep -c -e . said | "$PYTHON" -c 'assert int(input()) > 60'
"$PYTHON" - <<'END'
said = open("said", "rb").read()
said.decode()  # UTF-8
reorders = {0x61c, 0x200e, 0x200f, *range(0x202a, 0x202f), *range(0x2066, 0x206a)}
for text in said.decode().split("\n"):
    assert not reorders & set(map(ord, text)), repr(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text), repr(text)
    assert not text.startswith("kvtool: fine"), repr(text)
END
# In colour only the program's own sequences are printed.
"$KVTOOL" verify --color always "$name.kvz" > coloured
"$PYTHON" - <<'END'
import re
said = open("coloured", "rb").read()
assert b"\x1b[32mintact\x1b[0m" in said, said
assert b"\x1b[31m" not in said, said
END
# JSON of a name that is not UTF-8: invalid bytes as \xNN, backslashes doubled; a valid name is unchanged.
"$KVTOOL" inspect -q "$name.kvz" --json-out j.json --json > printed.json 2>&1
"$KVTOOL" verify -q "$name.kvz" --json-out v.json --json > /dev/null
cp "$name.kvz" 'back\slash é.kvz'
"$KVTOOL" verify -q 'back\slash é.kvz' --json-out w.json > /dev/null
cp "$name.kvz" "$(printf 'back\\slash \377.kvz')"
"$KVTOOL" verify -q "$(printf 'back\\slash \377.kvz')" --json-out x.json > /dev/null
"$PYTHON" "$SHARED_SUITE/check_escapes.py"
