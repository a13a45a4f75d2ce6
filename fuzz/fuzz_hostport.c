// HOST:PORT: what is taken can be written down again and is then taken as the same.
#include "os/hostport.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes) {
    char text[1024], again[HOSTPORT_HOST_BYTES + 16];
    struct hostport a, b;
    struct err e;
    if (len_bytes >= sizeof text) return 0;
    memcpy(text, data, len_bytes);
    text[len_bytes] = 0;
    if (hostport_parse(text, &a, &e)) return 0;
    snprintf(again, sizeof again, strchr(a.host, ':') ? "[%s]:%u" : "%s:%u", a.host, a.port);
    ASSERT(hostport_parse(again, &b, &e) == ERR_OK, "%s: %s", again, e.text);
    ASSERT(a.port == b.port && !strcmp(a.host, b.host), "%s", again);
    return 0;
}
