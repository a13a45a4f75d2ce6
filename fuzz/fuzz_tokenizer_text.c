// Any bytes as a text for one tokenizer of each kind: refused, or ids whose text is the text again. The first two bytes
// choose the tokenizer and whether control tokens count, the next ones where breaks are.
#include "text/detok.h"
#include "../test/unit/text/small.h"
#include "../test/unit/text/tiny.h"
#include <unistr.h>

enum { KINDS = 5, BREAKS = 4, TEXT_MAX = 2048 };

static struct tokenizer *made[KINDS];
static const bool keeps_all[KINDS] = {true, true, true, true, false};

static void make_all(void) {
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xc4\xa0 \xc4\xa0", NULL};
    static const char meta[] = "{\"type\": \"Metaspace\", \"replacement\": \"" M "\", \"prepend_scheme\": \"first\"}";
    struct gguf *g = NULL;
    made[0] = tiny_new(&(struct tiny){.merges = merges, .normalizer = "null"});
    struct buf b = small_json(&(struct small_json){.decoder = "{\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                                                              "\"Replace\", \"pattern\": {\"String\": \"" M
                                                              "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "
                                                              "{\"type\": \"Fuse\"}]}",
                                                   .normalizer = "{\"type\": \"Replace\", \"pattern\": {\"String\": "
                                                                 "\" \"}, \"content\": \"" M "\"}"});
    small_must(tokenizer_new((const char *)b.data, b.len_bytes, &made[1], NULL));
    buf_fini(&b);
    b = small_proto(&(struct small_proto){.no_prefix = true});
    small_must(tokenizer_new_spm(b.data, b.len_bytes, NULL, &made[2], NULL));
    buf_fini(&b);
    b = small_gguf(&(struct small_gguf){.no_prefix = true});
    small_must(gguf_new(b.data, b.len_bytes, &g, NULL));
    small_must(tokenizer_new_gguf(g, &made[3], NULL));
    gguf_free(g);
    buf_fini(&b);
    b = small_json(&(struct small_json){.decoder = meta, .pre_tokenizer = meta, .normalizer = "{\"type\": \"NFC\"}"});
    small_must(tokenizer_new((const char *)b.data, b.len_bytes, &made[4], NULL));
    buf_fini(&b);
}

// What comes back: the mark stands for a space, so where one was a space is now.
static void check_text(const uint8_t *text, size_t n, const struct buf *back, bool marks) {
    size_t at = 0;
    for (size_t i = 0; i < n; at++) {
        bool mark = marks && n - i >= 3 && memcmp(text + i, M, 3) == 0;
        if (at >= back->len_bytes || back->data[at] != (mark ? ' ' : text[i])) abort();
        i += mark ? 3 : 1;
    }
    if (at != back->len_bytes) abort();
}

static void run(int kind, bool special, const size_t *breaks, size_t n_breaks, const uint8_t *text, size_t n) {
    const struct tokenizer *t = made[kind];
    struct ids ids;
    struct buf back;
    ids_init(&ids, TEXT_MAX * 8);
    buf_init(&back, TEXT_MAX * 64);
    int rc = special ? tokenizer_encode_breaks(t, (const char *)text, n, breaks, n_breaks, &ids, NULL)
                     : tokenizer_encode(t, (const char *)text, n, false, &ids, NULL);
    if (!!rc != (u8_check(text, n) != NULL)) abort();
    struct detok *d = detok_new(t);
    if (!d) abort();
    for (size_t i = 0; i <= ids.n && !rc; i++) {
        size_t k;
        if (i < ids.n && !special && tokenizer_is_special(t, ids.data[i])) abort();
        const char *part = i < ids.n ? detok_feed(d, ids.data[i], &k) : detok_flush(d, &k);
        if (u8_check((const uint8_t *)part, k)) abort();
        small_must(buf_add(&back, part, k));
    }
    if (!rc && !special && keeps_all[kind]) check_text(text, n, &back, kind > 0);
    detok_free(d);
    ids_fini(&ids);
    buf_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!made[0]) make_all();
    if (size < 2 + BREAKS) return 0;
    size_t n = size - 2 - BREAKS, n_breaks = 0, breaks[BREAKS], last = 0;
    if (n > TEXT_MAX) n = TEXT_MAX;
    for (size_t i = 0; i < BREAKS; i++) {
        last += data[2 + i];
        if (last <= n && (last == n || (data[2 + BREAKS + last] & 0xc0) != 0x80)) breaks[n_breaks++] = last;
    }
    run(data[0] % KINDS, data[1] & 1, breaks, n_breaks, data + 2 + BREAKS, n);
    return 0;
}
