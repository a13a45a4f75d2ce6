#include "os/random.h"

#include "base/err.h"
#include <errno.h>
#include <sys/random.h>

void random_bytes(void *out, size_t len_bytes) {
    uint8_t *p = out;
    while (len_bytes) {
        ssize_t n = getrandom(p, len_bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        ASSERT(n > 0, "getrandom failed with errno %d", errno);
        p += n;
        len_bytes -= (size_t)n;
    }
}

uint64_t random_u64(void) {
    uint64_t r;
    random_bytes(&r, sizeof r);
    return r;
}
