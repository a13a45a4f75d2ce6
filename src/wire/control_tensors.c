// The messages about weights: ASK, MANIFEST, FETCH.
#include "wire/control_arena.h"

#include "tensor/dtype.h"

#include <string.h>

static int take_name(const char *field, const char *from, char to[LIMIT_TENSOR_NAME], struct err *e) {
    size_t n = strlen(from);
    if (n < 1 || n >= LIMIT_TENSOR_NAME)
        return err_set(e, ERR_LIMIT, "%s has %zu bytes, 1 to %d are right", field, n, LIMIT_TENSOR_NAME - 1);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)from[i] <= 0x20 || from[i] == 0x7f)
            return err_set(e, ERR_FORMAT, "%s holds a blank or a control character", field);
    memcpy(to, from, n + 1);
    return ERR_OK;
}

struct control_bytes control_put_ask(struct control *c, const struct control_ask *m) {
    ASSERT(m->n <= LIMIT_ASK_TENSORS);
    char *names[LIMIT_ASK_TENSORS];
    for (uint32_t i = 0; i < m->n; i++) names[i] = (char *)(uintptr_t)m->name[i];
    Loom__Ask p = LOOM__ASK__INIT;
    p.n_name = m->n;
    p.name = names;
    return control_pack(c, &p.base);
}

int control_get_ask(struct control *c, const void *data, uint32_t len, struct control_ask *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__ask__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Ask *p = v;
    if (p->n_name < 1 || p->n_name > LIMIT_ASK_TENSORS)
        return err_set(e, ERR_LIMIT, "ASK: %zu names, 1 to %d are right", p->n_name, LIMIT_ASK_TENSORS);
    m->n = (uint32_t)p->n_name;
    for (uint32_t i = 0; i < m->n && !rc; i++) rc = take_name("ASK: name", p->name[i], m->name[i], e);
    return rc;
}

struct control_bytes control_put_manifest(struct control *c, const struct control_manifest *m) {
    ASSERT(m->n <= LIMIT_ASK_TENSORS);
    Loom__Manifest__Entry entry[LIMIT_ASK_TENSORS], *list[LIMIT_ASK_TENSORS];
    for (uint32_t i = 0; i < m->n; i++) {
        const struct control_tensor *t = &m->entry[i];
        loom__manifest__entry__init(&entry[i]);
        list[i] = &entry[i];
        if (!t->found) continue;
        entry[i].found = true;
        entry[i].dtype = t->dtype;
        entry[i].n_dim = t->n_dims;
        entry[i].dim = (uint64_t *)(uintptr_t)t->dim;
        entry[i].bytes = t->bytes;
        entry[i].sha256 = (ProtobufCBinaryData){.len = CONTROL_SHA_BYTES, .data = (uint8_t *)(uintptr_t)t->sha256};
    }
    Loom__Manifest p = LOOM__MANIFEST__INIT;
    p.n_entry = m->n;
    p.entry = list;
    return control_pack(c, &p.base);
}

static int take_tensor(const Loom__Manifest__Entry *p, struct control_tensor *t, struct err *e) {
    *t = (struct control_tensor){.found = p->found};
    if (!p->found) return ERR_OK;
    if (p->dtype >= DT_N) return err_set(e, ERR_UNSUPPORTED, "MANIFEST: there is no element type %u", p->dtype);
    if (p->n_dim < 1 || p->n_dim > 4)
        return err_set(e, ERR_FORMAT, "MANIFEST: %zu dimensions, 1 to 4 are right", p->n_dim);
    if (p->sha256.len != CONTROL_SHA_BYTES) return err_set(e, ERR_FORMAT, "MANIFEST: sha256 is not 32 bytes");
    t->dtype = p->dtype;
    t->n_dims = (uint32_t)p->n_dim;
    t->bytes = p->bytes;
    memcpy(t->sha256, p->sha256.data, CONTROL_SHA_BYTES);
    // The bytes follow from type and shape; 2^48 bounds what is multiplied, so that nothing wraps.
    uint64_t rows = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        t->dim[d] = p->dim[d];
        if (p->dim[d] < 1 || p->dim[d] > 1u << 31)
            return err_set(e, ERR_LIMIT, "MANIFEST: a dimension is %lu", p->dim[d]);
        if (d + 1 < t->n_dims) rows *= p->dim[d];
        if (rows > 1ull << 48) return err_set(e, ERR_LIMIT, "MANIFEST: a tensor of more than 2^48 rows");
    }
    uint64_t row_bytes = dtype_row_bytes((enum dtype)t->dtype, t->dim[t->n_dims - 1]);
    if (row_bytes > (1ull << 48) / rows || rows * row_bytes != t->bytes)
        return err_set(e, ERR_FORMAT, "MANIFEST: %lu bytes do not fit type and shape", t->bytes);
    return ERR_OK;
}

int control_get_manifest(struct control *c, const void *data, uint32_t len, struct control_manifest *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__manifest__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Manifest *p = v;
    if (p->n_entry > LIMIT_ASK_TENSORS)
        return err_set(e, ERR_LIMIT, "MANIFEST: %zu entries, at most %d", p->n_entry, LIMIT_ASK_TENSORS);
    m->n = (uint32_t)p->n_entry;
    for (uint32_t i = 0; i < m->n && !rc; i++) rc = take_tensor(p->entry[i], &m->entry[i], e);
    return rc;
}

struct control_bytes control_put_fetch(struct control *c, const struct control_fetch *m) {
    Loom__Fetch p = LOOM__FETCH__INIT;
    p.name = (char *)(uintptr_t)m->name;
    p.offset = m->offset;
    p.bytes = m->bytes;
    return control_pack(c, &p.base);
}

int control_get_fetch(struct control *c, const void *data, uint32_t len, struct control_fetch *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__fetch__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Fetch *p = v;
    m->offset = p->offset;
    m->bytes = p->bytes;
    if (p->bytes < 1 || p->bytes > LIMIT_CHUNK_BYTES)
        return err_set(e, ERR_LIMIT, "FETCH: bytes is %u, 1 to %d are right", p->bytes, LIMIT_CHUNK_BYTES);
    return take_name("FETCH: name", p->name, m->name, e);
}
