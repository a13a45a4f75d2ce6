# cmake -DIN=file -DOUT=file -DNAME=symbol -P embed.cmake: the bytes of IN as a C string NAME in OUT.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " hex "${hex}")
file(WRITE ${OUT} "// Made from ${IN}.\nstatic const char ${NAME}[] = {\n${hex}0};\n")
