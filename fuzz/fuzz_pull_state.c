// The two files that `loom pull` keeps for itself. A plain text gets the checksum that it needs to be looked at; what
// is read must hold what its readers rely on.
#include "base/buf.h"
#include "base/crc32c.h"
#include "pull/listing.h"
#include "pull/state.h"
#include <stdlib.h>
#include <string.h>

static void look(const char *text, size_t len) {
    struct state s;
    struct state_record r;
    if (state_parse(text, len, &s)) {
        uint64_t end = 0;
        for (uint32_t i = 0; i < s.done.n; i++) {
            if (s.done.at[i].begin >= s.done.at[i].end || (i && s.done.at[i].begin <= end)) abort();
            end = s.done.at[i].end;
        }
        if (memchr(s.etag, '\r', strlen(s.etag)) || strlen(s.etag) >= sizeof s.etag) abort();
    }
    if (state_record_parse(text, len, &r))
        for (uint32_t i = 0; i < r.n; i++)
            if (listing_check_path(r.files[i].path, NULL) || state_record_find(&r, r.files[i].path) != &r.files[i])
                abort();
    state_record_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct buf b;
    look((const char *)data, size);
    buf_init(&b, 1 << 20);
    if (!buf_add(&b, data, size) && !buf_addf(&b, "sum %08x\n", crc32c(0, data, size)))
        look((const char *)b.data, b.len_bytes);
    buf_fini(&b);
    return 0;
}
