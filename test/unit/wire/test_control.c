#include "wire/control.h"

#include "tensor/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct control *c;
static const struct control_step_mark no_mark;

static int setup(void **state) {
    (void)state;
    c = control_new();
    return c ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    control_free(c);
    return 0;
}

static void fill_step(struct step *s, uint32_t n_seqs, uint32_t rows_each) {
    step_clear(s);
    s->id = 9;
    s->epoch = 2;
    for (uint32_t i = 0; i < n_seqs; i++) {
        struct step_seq *q = &s->seqs[s->n_seqs++];
        *q = (struct step_seq){.slot = LIMIT_SEQS - 1 - i,
                               .pos = 1000 * i,
                               .row = s->n_rows,
                               .n_rows = rows_each,
                               .first_block = i,
                               .block = s->n_blocks,
                               .n_blocks = i % 3,
                               .sample = i % 2 == 0,
                               .sampling = {.top_p = 1}};
        if (q->sample)
            q->sampling = (struct sampling){.temperature = 0.7f,
                                            .top_p = 0.9f,
                                            .min_p = 0.05f,
                                            .top_k = i % 4 ? -1 : 40,
                                            .seed = 0xfedcba9876543210u + i,
                                            .choice = i};
        for (uint32_t k = 0; k < q->n_blocks; k++) s->blocks[s->n_blocks++] = 77 * i + k;
        for (uint32_t k = 0; k < rows_each; k++) s->tokens[s->n_rows++] = (int32_t)(i * 31 + k);
    }
    s->releases[s->n_releases++] = 200;
}

static void assert_steps_equal(const struct step *a, const struct step *b) {
    assert_int_equal(a->n_seqs, b->n_seqs);
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_blocks, b->n_blocks);
    assert_int_equal(a->n_releases, b->n_releases);
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const struct step_seq *x = &a->seqs[i], *y = &b->seqs[i];
        assert_int_equal(x->slot, y->slot);
        assert_int_equal(x->pos, y->pos);
        assert_int_equal(x->row, y->row);
        assert_int_equal(x->n_rows, y->n_rows);
        assert_int_equal(x->first_block, y->first_block);
        assert_int_equal(x->block, y->block);
        assert_int_equal(x->n_blocks, y->n_blocks);
        assert_int_equal(x->sample, y->sample);
        assert_memory_equal(&x->sampling.temperature, &y->sampling.temperature, sizeof(float));
        assert_memory_equal(&x->sampling.top_p, &y->sampling.top_p, sizeof(float));
        assert_memory_equal(&x->sampling.min_p, &y->sampling.min_p, sizeof(float));
        assert_int_equal(x->sampling.top_k, y->sampling.top_k);
        assert_int_equal(x->sampling.seed, y->sampling.seed);
        assert_int_equal(x->sampling.choice, y->sampling.choice);
    }
    assert_memory_equal(a->tokens, b->tokens, a->n_rows * sizeof a->tokens[0]);
    assert_memory_equal(a->blocks, b->blocks, a->n_blocks * sizeof a->blocks[0]);
    assert_memory_equal(a->releases, b->releases, a->n_releases * sizeof a->releases[0]);
}

static void test_step(void **state) {
    (void)state;
    struct step *a = step_new(), *b = step_new();
    struct err e;
    static const uint32_t shapes[][2] = {{0, 0}, {1, 1}, {2, 7}, {64, 1}, {256, 8}, {1, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        fill_step(a, shapes[i][0], shapes[i][1]);
        struct control_step_mark mark = {.stable = 1ull << 40, .first = i % 2 == 0, .last = i % 3 == 0}, mark2;
        struct control_bytes p = control_put_step(c, a, &mark);
        assert_int_equal(control_get_step(c, p.data, p.len, b, &mark2, &e), ERR_OK);
        assert_steps_equal(a, b);
        assert_int_equal(mark2.stable, mark.stable);
        assert_int_equal(mark2.first, mark.first);
        assert_int_equal(mark2.last, mark.last);
        assert_int_equal(step_check(b, 100000, 100000, &e), ERR_OK);
        printf("step of %u sequences with %u rows each: %u bytes\n", shapes[i][0], shapes[i][1], p.len);
    }
    step_free(a);
    step_free(b);
}

// The largest step that the limits allow fits a frame and the memory of a struct control.
static void test_largest_step(void **state) {
    (void)state;
    struct step *a = step_new(), *b = step_new();
    struct control_step_mark mark;
    struct err e;
    fill_step(a, LIMIT_SEQS, LIMIT_STEP_ROWS / LIMIT_SEQS);
    a->seqs[LIMIT_SEQS - 1].n_blocks += STEP_BLOCKS_MAX - a->n_blocks;
    while (a->n_blocks < STEP_BLOCKS_MAX) a->blocks[a->n_blocks++] = UINT32_MAX;
    for (uint32_t i = 0; i < a->n_rows; i++) a->tokens[i] = INT32_MAX;
    struct control_bytes p = control_put_step(c, a, &no_mark);
    assert_true(p.len <= 256 << 10);
    assert_int_equal(control_get_step(c, p.data, p.len, b, &mark, &e), ERR_OK);
    assert_steps_equal(a, b);
    step_free(a);
    step_free(b);
}

static void test_broken_steps(void **state) {
    (void)state;
    struct step *a = step_new(), *b = step_new();
    struct control_step_mark mark;
    struct err e;
    uint8_t copy[65536];
    fill_step(a, 64, 4);
    struct control_bytes p = control_put_step(c, a, &no_mark);
    assert_true(p.len < sizeof copy);
    memcpy(copy, p.data, p.len);
    uint32_t refused = 0;
    for (uint32_t cut = 0; cut < p.len; cut++) { // what is accepted must at least be safe to look at
        if (control_get_step(c, copy, cut, b, &mark, &e))
            refused++;
        else
            (void)!step_check(b, 1000, 1000, NULL);
    }
    assert_true(refused > p.len / 2);
    // Columns that disagree: a message that has slots only.
    static const uint8_t slots_only[] = {0x0a, 2, 1, 2};
    assert_int_equal(control_get_step(c, slots_only, sizeof slots_only, b, &mark, &e), ERR_FORMAT);
    // More rows than a step may have: 3000 tokens of one byte each.
    copy[0] = 0x32;
    copy[1] = 0xb8;
    copy[2] = 0x17;
    memset(copy + 3, 1, 3000);
    assert_int_equal(control_get_step(c, copy, 3003, b, &mark, &e), ERR_LIMIT);
    step_free(a);
    step_free(b);
}

static void test_tokens(void **state) {
    (void)state;
    struct step_result *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    struct err e;
    for (uint32_t i = 0; i < LIMIT_SEQS; i++) {
        a->entry[i].slot = i;
        a->entry[i].fault = i % 5 == 0;
        a->entry[i].token = a->entry[i].fault ? -1 : (int32_t)(i * 1000);
        a->n++;
    }
    struct control_bytes p = control_put_tokens(c, a);
    assert_int_equal(control_get_tokens(c, p.data, p.len, b, &e), ERR_OK);
    assert_int_equal(b->n, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_int_equal(b->entry[i].slot, a->entry[i].slot);
        assert_int_equal(b->entry[i].token, a->entry[i].token);
        assert_int_equal(b->entry[i].fault, a->entry[i].fault);
    }
    a->n = 1;
    a->entry[0].slot = LIMIT_SEQS;
    p = control_put_tokens(c, a);
    assert_int_equal(control_get_tokens(c, p.data, p.len, b, &e), ERR_FORMAT);
    free(a);
    free(b);
}

static void test_small_messages(void **state) {
    (void)state;
    struct err e;
    struct control_join join = {.ln = 1, .port = 7701, .selftest = 5, .memory_bytes = 1ull << 40}, join2;
    strcpy(join.isa, "avx512");
    strcpy(join.name, "kitchen");
    struct control_bytes p = control_put_join(c, &join);
    assert_int_equal(control_get_join(c, p.data, p.len, &join2, &e), ERR_OK);
    assert_memory_equal(&join, &join2, sizeof join);
    strcpy(join.name, "a\nb"); // would forge a line of the log
    p = control_put_join(c, &join);
    assert_int_equal(control_get_join(c, p.data, p.len, &join2, &e), ERR_FORMAT);
    join.port = 0;
    p = control_put_join(c, &join);
    assert_int_equal(control_get_join(c, p.data, p.len, &join2, &e), ERR_FORMAT);

    struct control_welcome w = {.node = 3,
                                .weights = 2,
                                .kv = 1,
                                .max_rows = 512,
                                .max_context = 4096,
                                .plan_hash = 99,
                                .heartbeat_us = 50000,
                                .n_rope = 3},
                           w2;
    w.rope[0] = 1.0;
    w.rope[1] = 0.1;
    w.rope[2] = 1e-300;
    strcpy(w.model, "demo");
    p = control_put_welcome(c, &w);
    assert_int_equal(control_get_welcome(c, p.data, p.len, &w2, &e), ERR_OK);
    assert_memory_equal(&w, &w2, sizeof w);
    w.max_rows = LIMIT_STEP_ROWS + 1;
    p = control_put_welcome(c, &w);
    assert_int_equal(control_get_welcome(c, p.data, p.len, &w2, &e), ERR_LIMIT);

    char text[CONTROL_TEXT_MAX], longer[2000];
    memset(longer, 'x', sizeof longer);
    longer[5] = '\n';
    longer[sizeof longer - 1] = 0;
    p = control_put_text(c, longer);
    assert_int_equal(control_get_text(c, p.data, p.len, text, &e), ERR_OK);
    assert_int_equal(strlen(text), CONTROL_TEXT_MAX - 1);
    assert_int_equal(text[5], ' ');
}

static void name_holder(struct control_holder *h, uint64_t node) {
    h->node = node;
    snprintf(h->address, sizeof h->address, "10.0.0.1:%lu", node);
    snprintf(h->name, sizeof h->name, "node-%lu", node);
}

static void test_holders(void **state) {
    (void)state;
    struct err e;
    struct control_load load = {.n_stages = 3, .a = 4, .b = 8, .n_blocks = 100, .hot = true, .route_key = {1, 2, 3}};
    struct control_load load2;
    struct control_bytes p = control_put_load(c, &load); // the last stage: nobody comes next
    assert_int_equal(control_get_load(c, p.data, p.len, &load2, &e), ERR_OK);
    assert_memory_equal(&load, &load2, sizeof load);
    load.next.n = LIMIT_HOLDERS;
    for (uint32_t i = 0; i < LIMIT_HOLDERS; i++) name_holder(&load.next.holder[i], i + 7);
    load.next.holder[1].replay = true;
    load.next.holder[2] = (struct control_holder){.node = 99}; // the receiver itself
    p = control_put_load(c, &load);
    assert_int_equal(control_get_load(c, p.data, p.len, &load2, &e), ERR_OK);
    assert_memory_equal(&load, &load2, sizeof load);
    load.b = 4;
    p = control_put_load(c, &load);
    assert_int_equal(control_get_load(c, p.data, p.len, &load2, &e), ERR_FORMAT);

    struct control_next next = load.next, next2;
    p = control_put_next(c, &next);
    assert_int_equal(control_get_next(c, p.data, p.len, &next2, &e), ERR_OK);
    assert_memory_equal(&next, &next2, sizeof next);
    next.holder[2].node = next.holder[0].node;
    p = control_put_next(c, &next);
    assert_int_equal(control_get_next(c, p.data, p.len, &next2, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "NEXT: node 7 is there twice"));
    next = load.next;
    next.holder[0].name[0] = 0; // nobody could be proven behind that address
    p = control_put_next(c, &next);
    assert_int_equal(control_get_next(c, p.data, p.len, &next2, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "an address and no name"));
    next = load.next;
    strcpy(next.holder[1].address, "10.0.0.1\n:7");
    p = control_put_next(c, &next);
    assert_int_equal(control_get_next(c, p.data, p.len, &next2, &e), ERR_FORMAT);
    uint8_t many[2 * (LIMIT_HOLDERS + 1)]; // empty holders, one too many
    for (size_t i = 0; i < sizeof many; i += 2) memcpy(many + i, "\x0a\x00", 2);
    assert_int_equal(control_get_next(c, many, sizeof many, &next2, &e), ERR_LIMIT);
    memset(next.holder[0].address, 'a', CONTROL_ADDRESS_MAX - 1);
    memset(next.holder[0].name, 'n', CONTROL_NAME_MAX - 1);
    next.holder[0].address[CONTROL_ADDRESS_MAX - 1] = next.holder[0].name[CONTROL_NAME_MAX - 1] = 0;
    for (uint32_t i = 0; i < LIMIT_HOLDERS; i++) {
        next.holder[i] = next.holder[0];
        next.holder[i].node = UINT64_MAX - i;
    }
    assert_true(control_put_next(c, &next).len <= 1024); // what a frame NEXT may have is more
}

static void test_states_of_stages(void **state) {
    (void)state;
    struct err e;
    struct control_heartbeat h = {.time_us = 5, .rtt_us = 6, .steps = UINT64_MAX, .busy_us = UINT64_MAX, .waited = 3},
                             h2;
    h.n_stages = LIMIT_NODE_STAGES;
    for (uint32_t i = 0; i < h.n_stages; i++)
        h.stage[i] = (struct control_stage_state){.stage = LIMIT_STAGES - 1 - i,
                                                  .hot = i % 2 == 0,
                                                  .accepted = UINT64_MAX,
                                                  .done = UINT64_MAX - i,
                                                  .waiting_rows = UINT32_MAX,
                                                  .lag_us = UINT64_MAX};
    struct control_bytes p = control_put_heartbeat(c, &h);
    assert_true(p.len <= 2048);
    assert_int_equal(control_get_heartbeat(c, p.data, p.len, &h2, &e), ERR_OK);
    assert_memory_equal(&h, &h2, sizeof h);
    h.stage[3].stage = LIMIT_STAGES;
    p = control_put_heartbeat(c, &h);
    assert_int_equal(control_get_heartbeat(c, p.data, p.len, &h2, &e), ERR_LIMIT);
    h.stage[3].stage = h.stage[2].stage;
    p = control_put_heartbeat(c, &h);
    assert_int_equal(control_get_heartbeat(c, p.data, p.len, &h2, &e), ERR_FORMAT);
    uint8_t many[2 * (LIMIT_NODE_STAGES + 1)];
    for (size_t i = 0; i < sizeof many; i += 2) memcpy(many + i, "\x4a\x00", 2);
    assert_int_equal(control_get_heartbeat(c, many, sizeof many, &h2, &e), ERR_LIMIT);
}

static void test_orders(void **state) {
    (void)state;
    struct err e;
    char text[CONTROL_TEXT_MAX];
    bool flag = false;
    struct control_bytes p = control_put_hot(c, true);
    assert_int_equal(control_get_hot(c, p.data, p.len, &flag, &e), ERR_OK);
    assert_true(flag);
    p = control_put_hot(c, false);
    assert_int_equal(control_get_hot(c, p.data, p.len, &flag, &e), ERR_OK);
    assert_false(flag);
    p = control_put_leave(c, true, "somebody\nsat down");
    assert_int_equal(control_get_leave(c, p.data, p.len, &flag, text, &e), ERR_OK);
    assert_true(flag);
    assert_string_equal(text, "somebody sat down");
    static const uint8_t forged[] = {0x12, 3, 'a', '\n', 'b'};
    assert_int_equal(control_get_leave(c, forged, sizeof forged, &flag, text, &e), ERR_FORMAT);
    for (int what = STAGE_BROKEN; what <= STAGE_GAP; what++) {
        enum stage_failure got;
        p = control_put_failed(c, "too much was said", (enum stage_failure)what);
        assert_int_equal(control_get_failed(c, p.data, p.len, text, &got, &e), ERR_OK);
        assert_int_equal(got, what);
        assert_string_equal(text, "too much was said");
    }
    enum stage_failure what;
    p = control_put_refused(c, "later", true); // another flag of the same message
    assert_int_equal(control_get_failed(c, p.data, p.len, text, &what, &e), ERR_OK);
    assert_int_equal(what, STAGE_BROKEN);
}

// JOIN as an end would send it that does not clean its texts: field 6 is the name, 5 the port.
static int get_join_named(const char *name, struct control_join *m, struct err *e) {
    uint8_t raw[128] = {0x28, 9, 0x32, (uint8_t)strlen(name)};
    memcpy(raw + 4, name, strlen(name));
    return control_get_join(c, raw, (uint32_t)(4 + strlen(name)), m, e);
}

static void test_texts(void **state) {
    (void)state;
    static const char *const good[] = {"n", "", "织云", "caf\xc3\xa9 \xf0\x9f\x98\x80", "\xef\xbf\xbd"};
    static const char *const bad[] = {"\x1b[2J",  "a\nb",
                                      "\x7f",     "\xff",
                                      "\xc3",     "a\xc3(",
                                      "\xc0\xaf", "\xed\xa0\x80",
                                      "\xc2\x85", "\xf4\x90\x80\x80",
                                      "\xe2\x82", "\xf8\x88\x80\x80\x80"};
    struct control_join m;
    struct err e;
    char text[CONTROL_TEXT_MAX];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(get_join_named(good[i], &m, &e), ERR_OK);
        assert_string_equal(m.name, good[i]);
        assert_int_equal(control_text_prefix(good[i], 100), strlen(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(get_join_named(bad[i], &m, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "JOIN: name"));
        assert_true(control_text_prefix(bad[i], 100) < strlen(bad[i]));
        // What this end sends is always good.
        struct control_bytes p = control_put_text(c, bad[i]);
        assert_int_equal(control_get_text(c, p.data, p.len, text, &e), ERR_OK);
        assert_int_equal(strlen(text) > 0, 1);
    }
    assert_int_equal(control_text_prefix("ab\xc3\xa9", 3), 2);
    char small[4];
    control_text_clean("ab\xc3\xa9", small, sizeof small);
    assert_string_equal(small, "ab");
    control_text_clean("a\xff\n\xff", small, sizeof small);
    assert_string_equal(small, "a? ");
}

static void test_join_and_refusal(void **state) {
    (void)state;
    struct control_join join = {.ln = 1, .port = 1, .memory_bytes = CONTROL_MEMORY_MAX, .boot = 77, .name = "n"}, join2;
    char text[CONTROL_TEXT_MAX];
    bool retry = false;
    struct err e;
    struct control_bytes p = control_put_join(c, &join);
    assert_int_equal(control_get_join(c, p.data, p.len, &join2, &e), ERR_OK);
    assert_int_equal(join2.boot, 77);
    join.memory_bytes++;
    p = control_put_join(c, &join);
    assert_int_equal(control_get_join(c, p.data, p.len, &join2, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "memory_bytes"));
    p = control_put_refused(c, "later", true);
    assert_int_equal(control_get_refused(c, p.data, p.len, text, &retry, &e), ERR_OK);
    assert_true(retry);
    assert_string_equal(text, "later");
    p = control_put_text(c, "never");
    assert_int_equal(control_get_refused(c, p.data, p.len, text, &retry, &e), ERR_OK);
    assert_false(retry);
}

static void test_manifest(void **state) {
    (void)state;
    struct control_ask *ask = calloc(1, sizeof *ask), *ask2 = calloc(1, sizeof *ask2);
    struct control_manifest *m = calloc(1, sizeof *m), *m2 = calloc(1, sizeof *m2);
    struct err e;
    for (uint32_t i = 0; i < LIMIT_ASK_TENSORS; i++) {
        memset(ask->name[i], 'n', LIMIT_TENSOR_NAME - 1);
        ask->name[i][0] = (char)('a' + i % 26);
        m->entry[i] = (struct control_tensor){
            .found = i % 7 != 0, .dtype = DT_BF16, .n_dims = 2, .dim = {i + 1, 64}, .bytes = (i + 1) * 128ull};
        m->entry[i].sha256[31] = (uint8_t)i;
        if (!m->entry[i].found) m->entry[i] = (struct control_tensor){0};
    }
    ask->n = m->n = LIMIT_ASK_TENSORS;
    struct control_bytes p = control_put_ask(c, ask);
    assert_int_equal(control_get_ask(c, p.data, p.len, ask2, &e), ERR_OK);
    assert_memory_equal(ask, ask2, sizeof *ask);
    p = control_put_manifest(c, m);
    assert_int_equal(control_get_manifest(c, p.data, p.len, m2, &e), ERR_OK);
    assert_memory_equal(m, m2, sizeof *m);
    m->n = 1;
    m->entry[0] = m->entry[1];
    m->entry[0].bytes++; // not what type and shape make
    p = control_put_manifest(c, m);
    assert_int_equal(control_get_manifest(c, p.data, p.len, m2, &e), ERR_FORMAT);
    m->entry[0].dim[0] = 1ull << 31;
    m->entry[0].dim[1] = 1ull << 31;
    m->entry[0].n_dims = 4;
    m->entry[0].dim[2] = m->entry[0].dim[3] = 1ull << 31;
    p = control_put_manifest(c, m);
    assert_int_equal(control_get_manifest(c, p.data, p.len, m2, &e), ERR_LIMIT);
    struct control_fetch f = {.name = "t", .offset = 5, .bytes = LIMIT_CHUNK_BYTES + 1}, f2;
    p = control_put_fetch(c, &f);
    assert_int_equal(control_get_fetch(c, p.data, p.len, &f2, &e), ERR_LIMIT);
    free(ask);
    free(ask2);
    free(m);
    free(m2);
}

// A message that unfolds to far more memory than it has bytes is refused instead of eating the memory.
static void test_amplification(void **state) {
    (void)state;
    static uint8_t bomb[1 << 20];
    struct control_manifest *m = calloc(1, sizeof *m);
    for (size_t i = 0; i < sizeof bomb; i += 2) bomb[i] = 0x0a; // an empty entry, half a million times
    assert_int_equal(control_get_manifest(c, bomb, sizeof bomb, m, NULL), ERR_FORMAT);
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_largest_step),
        cmocka_unit_test(test_broken_steps),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_small_messages),
        cmocka_unit_test(test_holders),
        cmocka_unit_test(test_states_of_stages),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_amplification),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_join_and_refusal),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
