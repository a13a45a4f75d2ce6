// A tokenizer for weights that mean nothing: all words over an alphabet in order, the shorter first, so that each is
// the one before with a letter more and every merge is unlike all others.
#include "cmd/gguf_text.h"
#include "cmd/gguf_vocab.h"
#include "text/alphabet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LETTERS = 26, MERGE_BYTES = 32, N_BYTES = 256 };

static const char plain_template[] =
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

// Letter i of the words: a to z, and at the first place of one a space too.
static size_t spell_letter(uint32_t i, char *out) {
    if (i < LETTERS) {
        out[0] = (char)('a' + i);
        return 1;
    }
    memcpy(out, "\xc4\xa0", 2);
    return 2;
}

// Word number n of two letters and more: its spelling, and how long all but its last letter is.
static size_t word(uint32_t n, char *out, size_t *left_bytes) {
    uint32_t count = (LETTERS + 1) * LETTERS, letters = 2, digit[16];
    while (n >= count) {
        n -= count;
        count *= LETTERS;
        letters++;
    }
    for (uint32_t i = letters; i-- > 1;) {
        digit[i] = n % LETTERS;
        n /= LETTERS;
    }
    digit[0] = n;
    size_t len = 0;
    for (uint32_t i = 0; i < letters; i++) {
        *left_bytes = len;
        len += spell_letter(digit[i], out + len);
    }
    return len;
}

// Ids that the model has a meaning for, then the last ones for what else a template needs.
static int set_control(struct gguf_vocab *v, const struct hparams *h, struct err *e) {
    static const char end[] = "<|im_end|>", start[] = "<|im_start|>", text[] = "<|endoftext|>";
    int rc = ERR_OK;
    uint32_t at = v->n - 1;
    for (uint32_t i = 0; i < h->n_eos && !rc; i++) {
        char name[32];
        int len = i ? snprintf(name, sizeof name, "<|end_%u|>", i) : snprintf(name, sizeof name, "%s", end);
        rc = gguf_vocab_set(v, "", (uint32_t)h->eos_ids[i], name, (size_t)len, 0, GGUF_TOKEN_CONTROL, e);
    }
    if (!rc && h->bos_id >= 0 && v->type[h->bos_id] == GGUF_TOKEN_UNUSED)
        rc = gguf_vocab_set(v, "", (uint32_t)h->bos_id, text, sizeof text - 1, 0, GGUF_TOKEN_CONTROL, e);
    while (at && v->type[at] != GGUF_TOKEN_UNUSED) at--;
    return rc ? rc : gguf_vocab_set(v, "", at, start, sizeof start - 1, 0, GGUF_TOKEN_CONTROL, e);
}

// The bytes, then words, in the ids that are left. Each word is a merge.
static int set_words(struct gguf_vocab *v, struct gguf_string *merges, char *memory, uint64_t *n_merges,
                     struct err *e) {
    uint32_t n = 0;
    int rc = ERR_OK;
    for (uint32_t id = 0; id < v->n && !rc; id++) {
        char text[MERGE_BYTES];
        size_t len, left = 0;
        if (v->type[id] != GGUF_TOKEN_UNUSED) continue;
        if (n < N_BYTES) {
            len = alphabet_letter((int)n, text);
        } else {
            char *merge = memory + *n_merges * MERGE_BYTES;
            len = word(n - N_BYTES, text, &left);
            memcpy(merge, text, left);
            merge[left] = ' ';
            memcpy(merge + left + 1, text + left, len - left);
            merges[(*n_merges)++] = (struct gguf_string){merge, len + 1};
        }
        rc = gguf_vocab_set(v, "", id, text, len, 0, GGUF_TOKEN_NORMAL, e);
        n++;
    }
    if (!rc && n < N_BYTES) rc = err_set(e, ERR_UNSUPPORTED, "vocab_size %u: 256 and some more are needed", v->n);
    return rc;
}

static int put_all(const struct hparams *h, const struct gguf_vocab *v, const struct gguf_string *merges,
                   uint64_t n_merges, struct gguf_writer *w) {
    int rc = gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    if (!rc) rc = gguf_put_string(w, "tokenizer.ggml.pre", "qwen2", 5);
    if (!rc) rc = gguf_vocab_put(v, false, w);
    if (!rc) rc = gguf_put_array(w, "tokenizer.ggml.merges", GGUF_STRING, merges, n_merges);
    if (!rc && h->bos_id >= 0) rc = gguf_put_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)h->bos_id);
    if (!rc && h->n_eos) rc = gguf_put_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)h->eos_ids[0]);
    if (!rc) rc = gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
    return rc ? rc : gguf_put_string(w, "tokenizer.chat_template", plain_template, sizeof plain_template - 1);
}

int gguf_text_make_up(const struct hparams *h, struct gguf_writer *w, struct err *e) {
    struct gguf_vocab v;
    struct gguf_string *merges = calloc(h->n_vocab, sizeof *merges);
    char *memory = calloc(h->n_vocab, MERGE_BYTES);
    uint64_t n_merges = 0;
    int rc = gguf_vocab_init(&v, h->n_vocab, e);
    if (!rc && (!merges || !memory)) rc = err_set(e, ERR_NOMEM, "no memory for %u tokens", h->n_vocab);
    if (!rc) rc = set_control(&v, h, e);
    if (!rc) rc = set_words(&v, merges, memory, &n_merges, e);
    if (!rc && put_all(h, &v, merges, n_merges, w)) rc = err_set(e, ERR_NOMEM, "no room for the tokenizer");
    gguf_vocab_fini(&v);
    free(merges);
    free(memory);
    return rc;
}
