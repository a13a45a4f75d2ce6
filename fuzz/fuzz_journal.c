// A segment of the journal. The checksums of the records are made right first, or nothing would get past them; what was
// accepted must survive being written and read again.
#include "base/crc32c.h"
#include "head/journal_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint64_t model[2] = {1, 2};

static void mend(uint8_t *p, size_t n) {
    for (size_t at = 0; n - at >= JOURNAL_HEAD_BYTES;) {
        uint32_t body = p[at] | p[at + 1] << 8 | p[at + 2] << 16 | (uint32_t)p[at + 3] << 24;
        if (body > n - at - JOURNAL_HEAD_BYTES) return;
        uint32_t crc = crc32c(0, p + at + 8, 1 + (size_t)body);
        for (int i = 0; i < 4; i++) p[at + 4 + i] = (uint8_t)(crc >> 8 * i);
        at += JOURNAL_HEAD_BYTES + body;
    }
}

static void write_state(const struct journal_state *s, struct buf *out) {
    int rc = journal_put_start(s, out);
    for (const struct list *it = s->entries.next; !rc && it != &s->entries; it = it->next)
        rc = journal_put_request(LIST_ENTRY(it, const struct journal_entry, all), out);
    if (!rc) rc = journal_put_listed(out);
    if (rc) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *p = malloc(size + 1);
    if (!p) return 0;
    memcpy(p, data, size);
    mend(p, size);
    struct journal_state s, again;
    struct buf one, two;
    journal_read_init(&s, model, 1000);
    journal_read_init(&again, model, 1000);
    buf_init(&one, 1 << 30);
    buf_init(&two, 1 << 30);
    if (journal_read_segment(&s, p, size) > size) abort();
    write_state(&s, &one);
    uint64_t bytes = 0;
    for (const struct list *it = s.entries.next; it != &s.entries; it = it->next)
        bytes += journal_put_request_bytes(LIST_ENTRY(it, const struct journal_entry, all));
    if (bytes != s.live_bytes) abort();
    if (journal_read_segment(&again, one.data, one.len_bytes) != one.len_bytes) abort();
    write_state(&again, &two);
    if (one.len_bytes != two.len_bytes || memcmp(one.data, two.data, one.len_bytes) != 0) abort();
    journal_read_fini(&s);
    journal_read_fini(&again);
    buf_fini(&one);
    buf_fini(&two);
    free(p);
    return 0;
}
