// Weights for the nodes, off the loop's way.
#include "head/links_int.h"

#include "os/random.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_CAP = LIMIT_LINKS * LIMIT_BULK_ASKS };

void serve_free_job(struct serve_job *j) {
    if (!j) return;
    free(j->control);
    free(j->payload);
    free(j);
}

// Reads rather than maps: a file that shrinks under the head must not kill it.
static int hash_tensor(const struct serve *s, const struct tensor *t, uint8_t sha[CONTROL_SHA_BYTES], struct err *e) {
    enum { PIECE = 1 << 20 };
    uint8_t *piece = malloc(PIECE);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int rc = piece && md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) ? ERR_OK
                                                                      : err_set(e, ERR_NOMEM, "manifest: no memory");
    for (uint64_t at = 0; at < t->bytes && !rc; at += PIECE) {
        size_t n = t->bytes - at < PIECE ? (size_t)(t->bytes - at) : PIECE;
        rc = tensors_read(s->tensors, t, at, piece, n, e);
        if (!rc && !EVP_DigestUpdate(md, piece, n)) rc = err_set(e, ERR_IO, "manifest: SHA-256 failed");
    }
    if (!rc && !EVP_DigestFinal_ex(md, sha, NULL)) rc = err_set(e, ERR_IO, "manifest: SHA-256 failed");
    EVP_MD_CTX_free(md);
    free(piece);
    return rc;
}

static int describe(struct serve *s, const char *name, struct control_tensor *out, struct err *e) {
    uint32_t i;
    *out = (struct control_tensor){0};
    if (!strmap_get(&s->index, name, strlen(name), &i)) return ERR_OK;
    const struct tensor *t = tensors_at(s->tensors, i);
    if (!s->hashed[i]) {
        int rc = hash_tensor(s, t, s->sha[i], e);
        if (rc) return rc;
        s->hashed[i] = true;
    }
    out->found = true;
    out->dtype = (uint32_t)t->type;
    out->n_dims = t->n_dims;
    memcpy(out->dim, t->dim, sizeof out->dim);
    out->bytes = t->bytes;
    memcpy(out->sha256, s->sha[i], CONTROL_SHA_BYTES);
    return ERR_OK;
}

static int answer_ask(struct serve *s, struct serve_job *j) {
    int rc = control_get_ask(s->control, j->control, j->control_bytes, s->ask, &j->e);
    if (rc) return rc;
    s->manifest->n = s->ask->n;
    for (uint32_t i = 0; i < s->ask->n && !rc; i++) rc = describe(s, s->ask->name[i], &s->manifest->entry[i], &j->e);
    if (rc) return rc;
    struct control_bytes b = control_put_manifest(s->control, s->manifest);
    free(j->control);
    j->control = malloc(b.len);
    if (!j->control) return err_set(&j->e, ERR_NOMEM, "manifest: no memory");
    memcpy(j->control, b.data, b.len);
    j->control_bytes = b.len;
    j->h.type = FRAME_MANIFEST;
    return ERR_OK;
}

static int answer_fetch(struct serve *s, struct serve_job *j) {
    struct control_fetch f;
    uint32_t i;
    int rc = control_get_fetch(s->control, j->control, j->control_bytes, &f, &j->e);
    if (rc) return rc;
    if (!strmap_get(&s->index, f.name, strlen(f.name), &i))
        return err_set(&j->e, ERR_NOT_FOUND, "FETCH: there is no tensor %s", f.name);
    const struct tensor *t = tensors_at(s->tensors, i);
    if (f.offset > t->bytes || f.bytes > t->bytes - f.offset)
        return err_set(&j->e, ERR_LIMIT, "FETCH: %s has %lu bytes, not %lu + %u", f.name, t->bytes, f.offset, f.bytes);
    j->payload = malloc(f.bytes);
    if (!j->payload) return err_set(&j->e, ERR_NOMEM, "FETCH: no memory");
    rc = tensors_read(s->tensors, t, f.offset, j->payload, f.bytes, &j->e);
    if (rc) return rc;
    j->payload_bytes = f.bytes;
    j->payload_crc = frame_crc(NULL, 0, j->payload, f.bytes);
    j->control_bytes = 0;
    j->h.type = FRAME_CHUNK;
    j->h.dtype = (uint32_t)t->type;
    return ERR_OK;
}

// Nodes will ask for the hashes of all tensors. Meanwhile there is time to make them.
static bool hash_ahead(struct serve *s) {
    struct err unused; // who asks for it hears
    while (s->n_ahead < tensors_count(s->tensors) && s->hashed[s->n_ahead]) s->n_ahead++;
    if (s->n_ahead == tensors_count(s->tensors)) return false;
    const uint32_t i = s->n_ahead++;
    const struct tensor *t = tensors_at(s->tensors, i);
    // A stack of experts is asked for in its parts, and long enough that a question would have to wait.
    s->hashed[i] = t->n_dims <= 2 && hash_tensor(s, t, s->sha[i], &unused) == ERR_OK;
    return true;
}

static struct serve_job *next_job(struct serve *s) {
    struct serve_job *j;
    while (!(j = queue_pop(&s->asks, 0)) && !queue_is_closed(&s->asks))
        if (!hash_ahead(s)) return queue_pop(&s->asks, QUEUE_FOREVER);
    return j;
}

static void run(void *arg) {
    struct serve *s = arg;
    for (struct serve_job *j = next_job(s); j; j = next_job(s)) {
        j->rc = j->h.type == FRAME_ASK ? answer_ask(s, j) : answer_fetch(s, j);
        int rc = queue_push(&s->answers, j);
        ASSERT(rc == 0, "the queue of answers holds what the queue of questions holds");
    }
}

static int make_index(struct serve *s, struct err *e) {
    uint32_t n = tensors_count(s->tensors);
    size_t name_bytes = 1;
    for (uint32_t i = 0; i < n; i++) name_bytes += strlen(tensors_at(s->tensors, i)->name);
    strmap_init(&s->index, (size_t)n + 1, name_bytes, random_u64());
    s->sha = calloc((size_t)n + 1, sizeof *s->sha);
    s->hashed = calloc((size_t)n + 1, sizeof *s->hashed);
    int rc = s->sha && s->hashed ? ERR_OK : ERR_NOMEM;
    for (uint32_t i = 0; i < n && !rc; i++) {
        const char *name = tensors_at(s->tensors, i)->name;
        rc = strmap_put(&s->index, name, strlen(name), i);
    }
    return rc ? err_set(e, rc, "links: no memory for the names of %u tensors", n) : ERR_OK;
}

int serve_init(struct serve *s, const struct tensors *t, struct err *e) {
    *s = (struct serve){.tensors = t};
    s->asks.fd = s->answers.fd = -1;
    s->control = control_new();
    s->ask = malloc(sizeof *s->ask);
    s->manifest = malloc(sizeof *s->manifest);
    int rc = make_index(s, e);
    if (!rc && (!s->control || !s->ask || !s->manifest)) rc = err_set(e, ERR_NOMEM, "links: no memory");
    if (!rc) rc = queue_init(&s->asks, QUEUE_CAP, false, e);
    if (!rc) rc = queue_init(&s->answers, 2 * QUEUE_CAP, true, e);
    if (!rc) rc = thread_start(&s->thread, "weights", run, s, e);
    s->running = !rc;
    if (rc) serve_fini(s);
    return rc;
}

void serve_fini(struct serve *s) {
    if (s->running) {
        queue_close(&s->asks);
        thread_join(&s->thread);
        for (struct serve_job *j = queue_pop(&s->answers, 0); j; j = queue_pop(&s->answers, 0)) serve_free_job(j);
    }
    if (s->asks.items) queue_fini(&s->asks);
    if (s->answers.items) queue_fini(&s->answers);
    strmap_fini(&s->index);
    free(s->sha);
    free(s->hashed);
    free(s->ask);
    free(s->manifest);
    control_free(s->control);
    *s = (struct serve){0};
}

int serve_push(struct serve *s, uint64_t peer, const struct link_frame *f) {
    struct serve_job *j = calloc(1, sizeof *j);
    if (!j) return ERR_NOMEM;
    j->peer = peer;
    j->h = (struct frame_header){.type = f->h.type, .step = f->h.step};
    j->control_bytes = f->h.control_bytes;
    j->control = malloc(f->h.control_bytes ? f->h.control_bytes : 1);
    int rc = j->control ? ERR_OK : ERR_NOMEM;
    if (!rc) {
        memcpy(j->control, f->control, f->h.control_bytes);
        rc = queue_push(&s->asks, j);
    }
    if (rc) serve_free_job(j);
    return rc;
}
