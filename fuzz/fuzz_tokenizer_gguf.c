// The metadata of a GGUF file as a tokenizer and as the source of chat templates.
#include "text/template_source.h"
#include "text/tokenizer.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "hello [u]</s> <|x|> \xf0\x9f\x98\x80 1234\n";
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct template_source s = {0};
    struct err e;
    struct ids ids;
    if (gguf_new(data, size, &g, &e)) return 0;
    int rc = tokenizer_new_gguf(g, &t, &e);
    ASSERT(!rc || (e.code == rc && e.text[0]));
    ids_init(&ids, 4096);
    if (!rc) (void)!tokenizer_encode(t, text, sizeof text - 1, true, &ids, NULL);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        if (!tokenizer_token_bytes(t, ids.data[i], &len)) abort();
    }
    if (!rc) (void)!template_source_gguf(g, t, NULL, &s, &e);
    template_source_fini(&s);
    ids_fini(&ids);
    tokenizer_free(t);
    gguf_free(g);
    return 0;
}
