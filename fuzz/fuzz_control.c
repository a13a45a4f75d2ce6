// Every control message: the first byte chooses, the rest is the message. What is accepted must survive being written
// and read again.
#include "wire/control.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static union {
    struct control_enrol enrol;
    struct control_enrolled enrolled;
    struct control_join join;
    struct control_welcome welcome;
    struct control_load load;
    struct control_next next;
    struct control_heartbeat heartbeat;
    struct control_ask ask;
    struct control_manifest manifest;
    struct control_fetch fetch;
    struct step_result tokens;
    char text[CONTROL_TEXT_MAX];
    uint8_t key[CONTROL_KEY_BYTES];
} m;

// Reads as X, writes, reads again; both writings must be the same bytes.
#define ROUND_TRIP(X, put_arg)                                                                                         \
    do {                                                                                                               \
        if (control_get_##X(c, data, len, put_arg, &e)) break;                                                         \
        struct control_bytes p = control_put_##X(c, put_arg);                                                          \
        keep(p);                                                                                                       \
        if (control_get_##X(c, kept, p.len, put_arg, &e)) abort();                                                     \
        p = control_put_##X(c, put_arg);                                                                               \
        if (p.len != kept_len || memcmp(p.data, kept, p.len) != 0) abort();                                            \
    } while (0)

// The same for messages that come as several values.
#define ROUND_TRIP2(X, get_a, get_b, put_a, put_b)                                                                     \
    do {                                                                                                               \
        if (control_get_##X(c, data, len, get_a, get_b, &e)) break;                                                    \
        keep(control_put_##X(c, put_a, put_b));                                                                        \
        if (control_get_##X(c, kept, kept_len, get_a, get_b, &e)) abort();                                             \
        struct control_bytes p = control_put_##X(c, put_a, put_b);                                                     \
        if (p.len != kept_len || memcmp(p.data, kept, p.len) != 0) abort();                                            \
    } while (0)

static uint8_t kept[256 << 10];
static uint32_t kept_len;

static void keep(struct control_bytes p) {
    memcpy(kept, p.data, p.len);
    kept_len = p.len;
}

static void hot_round_trip(struct control *c, const uint8_t *data, uint32_t len) {
    bool hot = false, again = false;
    struct err e;
    if (control_get_hot(c, data, len, &hot, &e)) return;
    keep(control_put_hot(c, hot));
    if (control_get_hot(c, kept, kept_len, &again, &e) || again != hot) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct control *c;
    static struct step *step;
    struct control_step_mark mark = {0};
    bool flag = false;
    enum stage_failure what = STAGE_BROKEN;
    struct err e;
    if (!c) c = control_new();
    if (!step) step = step_new();
    if (!c || !step || size < 1) return 0;
    uint8_t which = *data++;
    uint32_t len = (uint32_t)(size - 1);
    memset(&m, 0, sizeof m);
    switch (which % 18) {
    case 0:
        ROUND_TRIP(enrol, &m.enrol);
        break;
    case 1:
        ROUND_TRIP(enrolled, &m.enrolled);
        break;
    case 2:
        ROUND_TRIP(join, &m.join);
        break;
    case 3:
        ROUND_TRIP(welcome, &m.welcome);
        break;
    case 4:
        ROUND_TRIP(load, &m.load);
        break;
    case 5:
        ROUND_TRIP(heartbeat, &m.heartbeat);
        break;
    case 6:
        ROUND_TRIP(ask, &m.ask);
        break;
    case 7:
        ROUND_TRIP(manifest, &m.manifest);
        break;
    case 8:
        ROUND_TRIP(fetch, &m.fetch);
        break;
    case 9:
        ROUND_TRIP(tokens, &m.tokens);
        break;
    case 10:
        ROUND_TRIP(text, m.text);
        break;
    case 11:
        ROUND_TRIP(attach, m.key);
        break;
    case 12:
        ROUND_TRIP2(step, step, &mark, step, &mark);
        if (step->n_seqs <= LIMIT_SEQS) (void)!step_check(step, 1000, 1000, &e);
        break;
    case 13:
        ROUND_TRIP(next, &m.next);
        break;
    case 14:
        hot_round_trip(c, data, len);
        break;
    case 15:
        ROUND_TRIP2(failed, m.text, &what, m.text, what);
        break;
    case 16:
        ROUND_TRIP2(refused, m.text, &flag, m.text, flag);
        break;
    default:
        ROUND_TRIP2(leave, &flag, m.text, flag, m.text);
    }
    return 0;
}
