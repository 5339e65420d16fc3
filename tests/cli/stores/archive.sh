# Everything that is read as a cache is archived as one and restored byte for byte, whatever its order of axes.
golden="$TESTDATA/golden/blend"
back() {
  "$KVTOOL" compress -q "$@" -o a.kvz
  "$KVTOOL" verify -q a.kvz --against "$1"
  "$KVTOOL" decompress -q a.kvz -o restored
  diff -r "$1" restored
  "$KVTOOL" inspect a.kvz 2> /dev/null | grep "layer"
  rm -r a.kvz restored
}
for prompt in f010c48b3ce184a2ff9d7b30a4492282 t_2_h_d mla_t_c; do back "$golden/vllm_shared_storage/$prompt"; done
back "$golden/vllm_shared_storage/t_h_2d" --layout 'th(2d)'
for store in fs gds v0_disk; do back "$golden/lmcache/$store"; done
back "$golden/lmcache/local_disk" --raw lmcache-disk::L=2,H=2,D=8
back "$golden/sglang_hicache" --raw hicache:bf16:L=2,H=2,D=8
