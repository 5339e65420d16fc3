"$KVTOOL" doctor absent.bin
