// What the planner reckons and what a stage takes are one number: whatever memory the nodes have, a plan that was made
// fits into them when the stages are built.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/stage.h"
#include "head/head_internal.h"
#include "head/open.h"

static struct opened_model model;

static void check_fits(const struct run_mode *mode, uint32_t max_rows, const struct plan_node *nodes,
                       const struct plan *p, struct backend *be, uint32_t context) {
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct plan_stage *s = &p->stage[i];
        struct stage_config c = {.hparams = &model.hparams, .mode = *mode, .a = s->a, .b = s->b};
        c.n_kv_blocks = p->n_blocks;
        c.max_rows = max_rows;
        c.max_context = context;
        struct stage_memory m;
        stage_memory(&c, be->ops, &m);
        uint64_t need = m.weights_bytes + m.kv_bytes + m.scratch_bytes;
        if (need > nodes[s->node].memory_bytes)
            fail_msg("layers [%u, %u): %llu bytes planned into %llu", s->a, s->b, (unsigned long long)need,
                     (unsigned long long)nodes[s->node].memory_bytes);
    }
}

static void a_plan_fits_when_it_is_built(void **state) {
    (void)state;
    struct rng r;
    struct backend *be;
    struct err e;
    struct backend_cpu_config one = {.isa = ISA_REF, .n_threads = 1};
    uint32_t n_plans = 0;
    rng_init(&r, 11);
    assert_int_equal(backend_cpu_new(&one, &be, &e), ERR_OK);
    for (int round = 0; round < 3000; round++) {
        static const enum weight_mode weights[] = {WEIGHTS_L8, WEIGHTS_AS_IS, WEIGHTS_Q8_0, WEIGHTS_Q4_0};
        struct run_mode mode = {.weights = weights[rng_below(&r, 4)], .kv = rng_below(&r, 2) ? KV_I8 : KV_F16};
        uint32_t max_rows = 1 + rng_below(&r, LIMIT_STEP_ROWS), n = 1 + rng_below(&r, 5);
        struct plan_node nodes[5];
        for (uint32_t i = 0; i < n; i++) nodes[i] = (struct plan_node){i, (1 + rng_below(&r, 300)) * 1000003ull};
        struct plan_wish w = {.context = 64 + rng_below(&r, 8000), .max_blocks = 100000};
        struct plan_model m;
        struct plan p;
        assert_int_equal(head_plan_model(&model.hparams, &mode, max_rows, &m, &e), ERR_OK);
        if (plan_make(nodes, n, &m, &w, &p, &e)) continue;
        n_plans++;
        check_fits(&mode, max_rows, nodes, &p, be, w.context);
    }
    assert_true(n_plans > 1000);
    be->ops->free(be);
}

int main(void) {
    struct err e;
    if (open_model(LOOM_SOURCE_DIR "/models/loom-demo", &model, &e)) {
        print_error("%s\n", e.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_plan_fits_when_it_is_built)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    open_model_close(&model);
    return rc;
}
