// What a client says of where it was, and what the journal gives back of an answer. What is accepted must survive being
// written and read again.
#include "gateway/record.h"
#include "gateway/resume.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void header(const uint8_t *data, size_t size) {
    struct resume r, again;
    struct api_error e;
    char *text = malloc(size + 1);
    if (!text) return;
    memcpy(text, data, size);
    text[size] = 0;
    if (resume_parse(text, &r, &e) == ERR_OK) {
        struct buf b;
        buf_init(&b, 1 << 16);
        if (buf_addf(&b, "%s", r.id)) abort();
        for (uint32_t i = 0; i < r.n; i++)
            if (buf_addf(&b, "%c%u", i ? '.' : ':', r.n_events[i])) abort();
        if (!buf_cstr(&b) || resume_parse((const char *)b.data, &again, &e)) abort();
        if (strcmp(again.id, r.id) != 0 || again.n != r.n) abort();
        if (memcmp(again.n_events, r.n_events, r.n * sizeof r.n_events[0]) != 0) abort();
        buf_fini(&b);
    }
    free(text);
}

static void record(const uint8_t *data, size_t size) {
    struct answer_ask k, again;
    struct buf one, two;
    uint32_t choice;
    if (record_get(data, size, &k, &choice)) return;
    buf_init(&one, LIMIT_KEEP_BYTES);
    buf_init(&two, LIMIT_KEEP_BYTES);
    if (record_put(&k, choice, &one) || record_get(one.data, one.len_bytes, &again, &choice)) abort();
    if (record_put(&again, choice, &two)) abort();
    if (one.len_bytes != two.len_bytes || memcmp(one.data, two.data, one.len_bytes) != 0) abort();
    free(k.stops);
    free(again.stops);
    buf_fini(&one);
    buf_fini(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] & 1)
        record(data + 1, size - 1);
    else
        header(data + 1, size - 1);
    return 0;
}
