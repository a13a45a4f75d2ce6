// Any bytes as a SentencePiece model on its way into a GGUF file: refused with a text, or tokens that can be written.
#include "cmd/gguf_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf_vocab v;
    struct gguf_writer *w;
    struct err e;
    if (gguf_vocab_init(&v, 64, &e)) return 0;
    int rc = gguf_vocab_read_spm(&v, data, size, &e);
    ASSERT(!rc || (e.code == rc && e.text[0]));
    if (!rc && !gguf_writer_new(&w)) {
        ASSERT(gguf_vocab_put(&v, true, w) == ERR_OK);
        gguf_writer_free(w);
    }
    gguf_vocab_fini(&v);
    return 0;
}
