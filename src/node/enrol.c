// Enrolment: the one time that a node has no certificate. A small loop of its own, which ends with the answer.
#include "node/node_int.h"

#include "base/log.h"
#include "net/token.h"
#include "os/clock.h"

#include <string.h>

// A head that has too much to do, or a listener whose links strangers take, closes the connection: worth another try.
enum { TRIES = 5, FIRST_RETRY_MS = 200 };

struct enrolment {
    struct loop *loop;
    struct loop_timer *retry;
    struct tls *tls;
    struct link *link;
    uint32_t tries;
    struct control *control;
    struct ident *id;
    struct token token;
    int rc;
    struct err *e;
};

static void finish(struct enrolment *x, int rc) {
    x->rc = rc;
    loop_stop(x->loop);
}

// The head has proven that its CA is the token's: now, and not before, the secret goes out.
static void on_up(void *arg, struct link *l) {
    struct enrolment *x = arg;
    struct control_enrol m = {0};
    size_t n = 0;
    int rc = ident_csr(x->id, m.csr, &n, x->e);
    if (rc) {
        finish(x, rc);
        return;
    }
    m.csr_bytes = (uint32_t)n;
    memcpy(m.secret, x->token.secret, sizeof m.secret);
    link_send_control(l, (struct frame_header){.type = FRAME_ENROL}, control_put_enrol(x->control, &m));
}

static void on_frame(void *arg, struct link *l, const struct link_frame *f) {
    (void)l;
    struct enrolment *x = arg;
    char why[CONTROL_TEXT_MAX];
    struct control_enrolled m;
    int rc;
    if (f->h.type == FRAME_REFUSED) {
        rc = control_get_text(x->control, f->control, f->h.control_bytes, why, x->e);
        if (!rc) rc = err_set(x->e, ERR_AUTH, "the head refused: %s", why);
    } else if (f->h.type == FRAME_ENROLLED) {
        rc = control_get_enrolled(x->control, f->control, f->h.control_bytes, &m, x->e);
        if (!rc) rc = ident_accept(x->id, m.cert, m.cert_bytes, m.ca, m.ca_bytes, x->token.fingerprint, x->e);
    } else {
        rc = err_set(x->e, ERR_FORMAT, "the head answered ENROL with %s", frame_name(f->h.type));
    }
    finish(x, rc);
}

static void on_closed(void *arg, struct link *l, const char *why) {
    (void)l;
    struct enrolment *x = arg;
    x->link = NULL;
    err_set(x->e, ERR_NET, "enrolment at %s: %s", x->token.address, why);
    if (++x->tries == TRIES)
        finish(x, ERR_NET);
    else
        loop_timer_set(x->retry, clock_now_us() + (FIRST_RETRY_MS * 1000ull << (x->tries - 1)));
}

static void dial(void *arg) {
    static const struct link_handlers handlers = {.up = on_up, .frame = on_frame, .closed = on_closed};
    struct enrolment *x = arg;
    int rc = link_connect(x->loop, x->tls, x->token.address, CA_HEAD_NAME, &handlers, x, &x->link, x->e);
    if (rc) finish(x, rc);
}

int enrol(const char *token_text, const char *state_dir, struct ident **id, char address[CONTROL_ADDRESS_MAX],
          struct err *e) {
    struct enrolment x = {.e = e};
    int rc = token_parse(token_text, &x.token, e);
    if (rc) return rc;
    memcpy(address, x.token.address, strlen(x.token.address) + 1);
    x.control = control_new();
    if (!x.control) rc = err_set(e, ERR_NOMEM, "enrolment: no memory");
    if (!rc) rc = ident_new(&x.id, e);
    if (!rc) rc = loop_new(&x.loop, e);
    if (!rc) rc = tls_new_enrol(x.token.fingerprint, &x.tls, e);
    if (!rc && !(x.retry = loop_timer_new(x.loop, dial, &x))) rc = err_set(e, ERR_NOMEM, "enrolment: no memory");
    if (!rc) {
        loop_timer_set(x.retry, 0);
        loop_run(x.loop);
        rc = x.rc;
        link_close(x.link);
    }
    if (!rc) rc = ident_save(x.id, state_dir, e);
    if (!rc) LOG_I("node", "enrolled as %s", ident_name(x.id));
    loop_timer_free(x.retry);
    tls_free(x.tls);
    loop_free(x.loop);
    control_free(x.control);
    if (rc)
        ident_free(x.id);
    else
        *id = x.id;
    return rc;
}
