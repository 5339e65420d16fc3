# Reads pages of SGLang's layout page_unified, and of pools whose K and V differ in head size.
here="$TESTDATA/engines/sglang"
same() { "$PYTHON" "$SHARED_SUITE/same.py" "$1" "$here/expected.npz" "${@:2}"; }
cp "$here"/*.bin .
read_as() { "$KVTOOL" convert -q "$1" --raw "$2" --to npz -o c.npz -f && same c.npz "$3"; }
"$KVTOOL" inspect *1_org-model_0_1.bin --raw hicache-unified:bf16:L=3,H=4,D=8
read_as *1_org-model_0_1.bin hicache-unified:bf16:L=3,H=4,D=8 unified-1
read_as *2_org-model_0_1.bin hicache-unified:bf16:L=3,H=4,D=8,G=2 unified-2
read_as unequal.bin hicache:f16:L=3,H=2,D=6,V=4 unequal
read_as unequal.bin f16:2LTHD:2,3,4,2,6/4 unequal
read_as unequal.bin f16:2LTHD:2,3,?,2,6/4 unequal
"$KVTOOL" compress -q unequal.bin --raw hicache:f16:L=3,H=2,D=6,V=4 -o a.kvz && "$KVTOOL" decompress -q a.kvz -o back && cmp unequal.bin back && echo "round trip"
for wrong in hicache:f16:L=3,H=2,D=6,V=5 hicache-mla:f16:L=3,D=6,V=4 f16:TL2HD:?,3,2,2,6/ f16:TLHD:?,3,2,6/4 f16:2TLHD:2,?,3,2,?/4 \
             f16:GTD:2,?,4 hicache-unified:f16:L=3,H=4,D=8,G=3 hicache-unified:f16:L=3,C=4,G=2; do
  "$KVTOOL" inspect unequal.bin --raw "$wrong" || echo "exit $?"
done
