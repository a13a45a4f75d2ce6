// token_ids TOKENIZER CORPUS: the ids of texts and what they decode to, for comparison with other programs. TOKENIZER
// is a tokenizer.json, a tokenizer.model or a .gguf file. CORPUS holds texts, each behind its length; what comes out on
// stdout is for each of them the number of ids and the ids, the number of bytes and the decoded text (u32 and i32,
// little-endian). A text that is refused has -1 ids, and the error for its text.
#include "gguf/gguf.h"
#include "os/file.h"
#include "text/detok.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IDS_MAX = LIMIT_PROMPT_BYTES };

static int open_tokenizer(const char *path, struct tokenizer **t, struct err *e) {
    size_t n = strlen(path);
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) return tokenizer_open(path, t, e);
    struct file_map map;
    struct gguf *g = NULL;
    int rc = file_map_open(&map, path, e);
    if (rc) return rc;
    rc = gguf_new(map.data, map.len_bytes, &g, e);
    if (!rc) rc = tokenizer_new_gguf(g, t, e);
    gguf_free(g);
    file_map_close(&map);
    return rc;
}

static void put(const void *data, size_t n) {
    if (n && fwrite(data, 1, n, stdout) != n) exit(1);
}

static void put_u32(uint32_t v) { put(&v, sizeof v); }

static void decode(struct detok *d, const struct ids *ids) {
    struct buf text;
    buf_init(&text, 1u << 30);
    detok_reset(d);
    for (size_t i = 0; i <= ids->n; i++) {
        size_t n;
        const char *part = i < ids->n ? detok_feed(d, ids->data[i], &n) : detok_flush(d, &n);
        if (buf_add(&text, part, n)) exit(1);
    }
    put_u32((uint32_t)text.len_bytes);
    put(text.data, text.len_bytes);
    buf_fini(&text);
}

int main(int argc, char **argv) {
    struct tokenizer *t;
    struct err e = {0};
    char *corpus;
    size_t len;
    if (argc != 3) return fprintf(stderr, "usage: token_ids TOKENIZER CORPUS\n"), 2;
    if (open_tokenizer(argv[1], &t, &e) || file_read(argv[2], 1u << 30, &corpus, &len, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    struct ids ids;
    struct detok *d = detok_new(t);
    double seconds = 0;
    ids_init(&ids, IDS_MAX);
    for (size_t at = 0; at + 4 <= len;) {
        uint32_t n;
        struct timespec a, b;
        memcpy(&n, corpus + at, sizeof n);
        at += sizeof n;
        if (n > len - at) return fprintf(stderr, "the corpus is cut off\n"), 1;
        ids_clear(&ids);
        clock_gettime(CLOCK_MONOTONIC, &a);
        int rc = tokenizer_encode(t, corpus + at, n, true, &ids, &e);
        clock_gettime(CLOCK_MONOTONIC, &b);
        seconds += (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
        put_u32(rc ? UINT32_MAX : (uint32_t)ids.n);
        if (rc) {
            put_u32((uint32_t)strlen(e.text));
            put(e.text, strlen(e.text));
        } else {
            put(ids.data, ids.n * sizeof *ids.data);
            decode(d, &ids);
        }
        at += n;
    }
    fprintf(stderr, "%.2f s, %.1f MB/s\n", seconds, (double)len / seconds / 1e6);
    detok_free(d);
    ids_fini(&ids);
    tokenizer_free(t);
    free(corpus);
    return fflush(stdout) ? 1 : 0;
}
