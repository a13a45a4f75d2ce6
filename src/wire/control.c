#include "wire/control_arena.h"

#include <stdlib.h>
#include <string.h>

static void *arena_alloc(void *arg, size_t bytes) {
    struct control *c = arg;
    size_t want = (bytes + 15) / 16 * 16;
    if (bytes > CONTROL_ARENA_BYTES || want > CONTROL_ARENA_BYTES - c->used_bytes) return NULL;
    void *p = c->arena + c->used_bytes;
    c->used_bytes += want;
    return p;
}

static void arena_free(void *arg, void *p) {
    (void)arg;
    (void)p;
}

struct control *control_new(void) {
    struct control *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    if (!c) return NULL;
    c->allocator = (ProtobufCAllocator){.alloc = arena_alloc, .free = arena_free, .allocator_data = c};
    c->used_bytes = 0;
    return c;
}

void control_free(struct control *c) { free(c); }

struct control_bytes control_pack(struct control *c, const ProtobufCMessage *m) {
    size_t n = protobuf_c_message_get_packed_size(m);
    ASSERT(n <= sizeof c->out, "%s has %zu bytes", m->descriptor->name, n);
    protobuf_c_message_pack(m, c->out);
    return (struct control_bytes){c->out, (uint32_t)n};
}

int control_unpack(struct control *c, const ProtobufCMessageDescriptor *d, const void *data, uint32_t len, void **m,
                   struct err *e) {
    static const uint8_t nothing[1];
    c->used_bytes = 0;
    *m = protobuf_c_message_unpack(d, &c->allocator, len, len ? data : nothing);
    if (!*m) return err_set(e, ERR_FORMAT, "%s: not a message of that kind, or one that is too large", d->name);
    return ERR_OK;
}

int control_take_text(const char *field, const char *from, char *to, size_t to_bytes, struct err *e) {
    size_t n = strlen(from), good = control_text_prefix(from, n);
    if (n >= to_bytes) return err_set(e, ERR_LIMIT, "%s has %zu bytes, at most %zu", field, n, to_bytes - 1);
    if (good < n && ((unsigned char)from[good] < 0x20 || from[good] == 0x7f))
        return err_set(e, ERR_FORMAT, "%s holds a control character", field);
    if (good < n) return err_set(e, ERR_FORMAT, "%s is not plain UTF-8 at byte %zu", field, good);
    memcpy(to, from, n + 1);
    return ERR_OK;
}

static int take_bytes(const char *field, const ProtobufCBinaryData *from, uint8_t *to, size_t max, uint32_t *len,
                      struct err *e) {
    if (from->len == 0 || from->len > max)
        return err_set(e, ERR_LIMIT, "%s has %zu bytes, 1 to %zu are right", field, from->len, max);
    memcpy(to, from->data, from->len);
    *len = (uint32_t)from->len;
    return ERR_OK;
}

int control_take_exact(const char *field, const ProtobufCBinaryData *from, uint8_t *to, size_t want, struct err *e) {
    if (from->len != want) return err_set(e, ERR_FORMAT, "%s has %zu bytes, %zu are right", field, from->len, want);
    memcpy(to, from->data, want);
    return ERR_OK;
}

char *control_text_of(const char *s) { return (char *)(uintptr_t)s; }

ProtobufCBinaryData control_binary(const uint8_t *data, size_t len) {
    return (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)data};
}

struct control_bytes control_put_enrol(struct control *c, const struct control_enrol *m) {
    Loom__Enrol p = LOOM__ENROL__INIT;
    p.secret = control_binary(m->secret, sizeof m->secret);
    p.csr = control_binary(m->csr, m->csr_bytes);
    return control_pack(c, &p.base);
}

int control_get_enrol(struct control *c, const void *data, uint32_t len, struct control_enrol *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__enrol__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Enrol *p = v;
    rc = control_take_exact("ENROL: secret", &p->secret, m->secret, sizeof m->secret, e);
    return rc ? rc : take_bytes("ENROL: csr", &p->csr, m->csr, sizeof m->csr, &m->csr_bytes, e);
}

struct control_bytes control_put_enrolled(struct control *c, const struct control_enrolled *m) {
    Loom__Enrolled p = LOOM__ENROLLED__INIT;
    p.cert = control_binary(m->cert, m->cert_bytes);
    p.ca = control_binary(m->ca, m->ca_bytes);
    return control_pack(c, &p.base);
}

int control_get_enrolled(struct control *c, const void *data, uint32_t len, struct control_enrolled *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__enrolled__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Enrolled *p = v;
    rc = take_bytes("ENROLLED: cert", &p->cert, m->cert, sizeof m->cert, &m->cert_bytes, e);
    return rc ? rc : take_bytes("ENROLLED: ca", &p->ca, m->ca, sizeof m->ca, &m->ca_bytes, e);
}

// One message for the three: what is not theirs stays false.
static struct control_bytes put_text(struct control *c, const char *text, bool retry, enum stage_failure what) {
    char clean[CONTROL_TEXT_MAX];
    control_text_clean(text, clean, sizeof clean);
    Loom__Text p = LOOM__TEXT__INIT;
    p.text = clean;
    p.retry = retry;
    p.no_replay = what == STAGE_NO_REPLAY;
    p.gap = what == STAGE_GAP;
    return control_pack(c, &p.base);
}

static int get_text(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX], bool *retry,
                    enum stage_failure *what, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__text__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Text *p = v;
    *retry = p->retry;
    *what = p->no_replay ? STAGE_NO_REPLAY : p->gap ? STAGE_GAP : STAGE_BROKEN;
    return control_take_text("text", p->text, text, CONTROL_TEXT_MAX, e);
}

struct control_bytes control_put_text(struct control *c, const char *text) {
    return put_text(c, text, false, STAGE_BROKEN);
}

struct control_bytes control_put_refused(struct control *c, const char *text, bool retry) {
    return put_text(c, text, retry, STAGE_BROKEN);
}

struct control_bytes control_put_failed(struct control *c, const char *text, enum stage_failure what) {
    return put_text(c, text, false, what);
}

int control_get_text(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX], struct err *e) {
    bool unused;
    enum stage_failure unused2;
    return get_text(c, data, len, text, &unused, &unused2, e);
}

int control_get_refused(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX], bool *retry,
                        struct err *e) {
    enum stage_failure unused;
    return get_text(c, data, len, text, retry, &unused, e);
}

int control_get_failed(struct control *c, const void *data, uint32_t len, char text[CONTROL_TEXT_MAX],
                       enum stage_failure *what, struct err *e) {
    bool unused;
    return get_text(c, data, len, text, &unused, what, e);
}

struct control_bytes control_put_join(struct control *c, const struct control_join *m) {
    Loom__Join p = LOOM__JOIN__INIT;
    p.ln = m->ln;
    p.selftest = m->selftest;
    p.isa = control_text_of(m->isa);
    p.memory_bytes = m->memory_bytes;
    p.port = m->port;
    p.name = control_text_of(m->name);
    p.boot = m->boot;
    return control_pack(c, &p.base);
}

int control_get_join(struct control *c, const void *data, uint32_t len, struct control_join *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__join__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Join *p = v;
    *m = (struct control_join){
        .ln = p->ln, .port = p->port, .selftest = p->selftest, .memory_bytes = p->memory_bytes, .boot = p->boot};
    if (p->memory_bytes > CONTROL_MEMORY_MAX)
        return err_set(e, ERR_LIMIT, "JOIN: memory_bytes is %lu, which no machine has", p->memory_bytes);
    if (p->port < 1 || p->port > 65535) return err_set(e, ERR_FORMAT, "JOIN: port is %u", p->port);
    rc = control_take_text("JOIN: isa", p->isa, m->isa, sizeof m->isa, e);
    return rc ? rc : control_take_text("JOIN: name", p->name, m->name, sizeof m->name, e);
}

struct control_bytes control_put_welcome(struct control *c, const struct control_welcome *m) {
    uint64_t bits[LIMIT_ROPE_VALUES];
    char model[sizeof m->model]; // a folder's name, which may be anything
    control_text_clean(m->model, model, sizeof model);
    memcpy(bits, m->rope, m->n_rope * sizeof bits[0]);
    Loom__Welcome p = LOOM__WELCOME__INIT;
    p.node = m->node;
    p.model = model;
    p.weights = m->weights;
    p.kv = m->kv;
    p.verify = m->verify;
    p.max_rows = m->max_rows;
    p.max_context = m->max_context;
    p.plan_hash = m->plan_hash;
    p.heartbeat_us = m->heartbeat_us;
    p.boot = m->boot;
    p.n_rope_bits = m->n_rope;
    p.rope_bits = bits;
    return control_pack(c, &p.base);
}

static int check_welcome(const struct control_welcome *m, struct err *e) {
    if (m->max_rows < 1 || m->max_rows > LIMIT_STEP_ROWS)
        return err_set(e, ERR_LIMIT, "WELCOME: max_rows is %u, 1 to %d are right", m->max_rows, LIMIT_STEP_ROWS);
    if (m->max_context < 1 || m->max_context > LIMIT_CONTEXT)
        return err_set(e, ERR_LIMIT, "WELCOME: max_context is %u, 1 to %d are right", m->max_context, LIMIT_CONTEXT);
    if (m->heartbeat_us < 1000 || m->heartbeat_us > 60000000)
        return err_set(e, ERR_LIMIT, "WELCOME: heartbeat_us is %lu, 1000 to 60000000 are right", m->heartbeat_us);
    return ERR_OK;
}

int control_get_welcome(struct control *c, const void *data, uint32_t len, struct control_welcome *m, struct err *e) {
    void *v;
    int rc = control_unpack(c, &loom__welcome__descriptor, data, len, &v, e);
    if (rc) return rc;
    const Loom__Welcome *p = v;
    if (p->n_rope_bits > LIMIT_ROPE_VALUES)
        return err_set(e, ERR_LIMIT, "WELCOME: %zu RoPE values, at most %d", p->n_rope_bits, LIMIT_ROPE_VALUES);
    *m = (struct control_welcome){.node = p->node,
                                  .weights = p->weights,
                                  .kv = p->kv,
                                  .verify = p->verify,
                                  .max_rows = p->max_rows,
                                  .max_context = p->max_context,
                                  .plan_hash = p->plan_hash,
                                  .heartbeat_us = p->heartbeat_us,
                                  .boot = p->boot,
                                  .n_rope = (uint32_t)p->n_rope_bits};
    if (p->n_rope_bits) memcpy(m->rope, p->rope_bits, p->n_rope_bits * sizeof m->rope[0]);
    rc = control_take_text("WELCOME: model", p->model, m->model, sizeof m->model, e);
    return rc ? rc : check_welcome(m, e);
}
