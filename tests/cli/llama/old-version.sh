printf 'nsgg\006\0\0\0\0\0\0\0' > v6.bin
printf 'qsgg\001\0\0\0\0\0\0\0' > v1.bin
printf 'qsgg\004\0\0\0\0\0\0\0' > v4.bin
"$KVTOOL" inspect v6.bin v1.bin v4.bin
