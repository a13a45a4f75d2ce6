// tokenizer.model: any bytes as one, and as the tokenizer_config.json beside a sound one.
#include "text/tokenizer.h"
#include "../test/unit/text/small.h"

enum { TEXT_MAX = 512 };

static void encode(const struct tokenizer *t, const uint8_t *text, size_t n) {
    struct ids ids;
    ids_init(&ids, TEXT_MAX * 8);
    (void)!tokenizer_encode(t, (const char *)text, n < TEXT_MAX ? n : TEXT_MAX, true, &ids, NULL);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        if (!tokenizer_token_bytes(t, ids.data[i], &len)) abort();
    }
    ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct buf sound;
    if (!sound.data) sound = small_proto(&(struct small_proto){0});
    struct tokenizer *t = NULL;
    struct err e;
    char *config = strndup((const char *)data, size);
    bool is_model = size == 0 || data[0] != '{';
    int rc = is_model ? tokenizer_new_spm(data, size, NULL, &t, &e)
                      : tokenizer_new_spm(sound.data, sound.len_bytes, config, &t, &e);
    ASSERT(!rc || (e.code == rc && e.text[0]));
    if (!rc) encode(t, data, size);
    if (!rc) encode(t, (const uint8_t *)"hello [u]</s> \xf0\x9f\x98\x80", 18);
    tokenizer_free(t);
    free(config);
    return 0;
}
