// tokenizer.json and what follows from it: the input up to a NUL is the file, or, if that is refused, a small
// sound one takes its place; behind the NUL is text to encode, whose ids must give the text back.
#include "text/detok.h"
#include "text/tokenizer.h"
#include "../test/unit/text/tiny.h"
#include <unistr.h>

enum { TEXT_MAX = 512 };

static void round_trip(const struct tokenizer *t, const char *text, size_t n, bool plain) {
    struct ids ids;
    struct buf back;
    ids_init(&ids, TEXT_MAX * 8);
    buf_init(&back, TEXT_MAX * LIMIT_TOKEN_BYTES);
    int rc = tokenizer_encode(t, text, n, false, &ids, NULL);
    struct detok *d = detok_new(t);
    if (!d) abort();
    for (size_t i = 0; i <= ids.n && !rc; i++) {
        size_t k;
        const char *part = i < ids.n ? detok_feed(d, ids.data[i], &k) : detok_flush(d, &k);
        if (u8_check((const uint8_t *)part, k)) abort(); // half a character in an event
        rc = buf_add(&back, part, k);
    }
    // The small tokenizer loses nothing: it has no normaliser and drops no part.
    if (!rc && plain && (back.len_bytes != n || (n && memcmp(back.data, text, n) != 0))) abort();
    detok_free(d);
    ids_fini(&ids);
    buf_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *small;
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "Ġ Ġ", "a a", "aa aa", NULL};
    if (!small) small = tiny_new(&(struct tiny){.merges = merges, .normalizer = "null"});
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t json = nul ? (size_t)(nul - data) : size;
    size_t text = nul ? size - json - 1 : 0;
    if (text > TEXT_MAX) text = TEXT_MAX;
    struct tokenizer *t = NULL;
    struct err e;
    int rc = tokenizer_new((const char *)data, json, &t, &e);
    round_trip(rc ? small : t, nul ? (const char *)nul + 1 : "", text, rc != 0);
    tokenizer_free(t);
    return 0;
}
