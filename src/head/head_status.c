#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "head/head.h"
#include "head/head_internal.h"

void head_publish(struct head *h) {
    pthread_mutex_lock(&h->lock);
    struct head_snapshot *s = &h->snapshot;
    s->ready = h->ready;
    s->canary_err = h->canary_err;
    brain_status(h->brain, &s->brain);
    s->n_nodes = h->links ? links_nodes(h->links, s->node, LIMIT_NODES) : 0;
    if (s->n_nodes > LIMIT_NODES) s->n_nodes = LIMIT_NODES;
    s->waited = h->links ? links_waited(h->links) : 0;
    if (h->local) local_counts(h->local, &s->local);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

void head_health(void *head, struct gateway_health *health) {
    struct head *h = head;
    pthread_mutex_lock(&h->lock);
    const struct head_snapshot *s = &h->snapshot;
    health->ready = s->ready;
    health->retry_after_us = s->brain.retry_after_us;
    if (s->ready) {
        health->why[0] = 0;
    } else if (s->brain.route_up && s->canary_err.code) {
        snprintf(health->why, sizeof health->why, "the first token did not come: %.200s", s->canary_err.text);
    } else if (s->brain.route_up) {
        snprintf(health->why, sizeof health->why, "the route is up, its first token is on the way");
    } else {
        snprintf(health->why, sizeof health->why, "%s", s->brain.why_down[0] ? s->brain.why_down : "starting");
    }
    pthread_mutex_unlock(&h->lock);
}

int head_wait_ready(struct head *h, uint64_t timeout_ms, struct err *e) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    int rc = 0;
    pthread_mutex_lock(&h->lock);
    // Local stages get no company and compute what they computed before: where they failed, waiting does not help.
    bool hopeless = false;
    int failed = 0;
    while (!h->snapshot.ready && !hopeless && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&h->changed, &h->lock, &until);
        failed = h->snapshot.canary_err.code;
        hopeless = h->local && (h->snapshot.brain.stuck || failed);
    }
    bool ready = h->snapshot.ready;
    pthread_mutex_unlock(&h->lock);
    if (ready) return ERR_OK;
    struct gateway_health why;
    head_health(h, &why);
    if (hopeless && failed) return err_set(e, failed, "%s", why.why);
    if (hopeless) return err_set(e, ERR_LIMIT, "%s (--memory, --context)", why.why);
    return err_set(e, ERR_UNAVAILABLE, "not ready after %.1f s: %s", (double)timeout_ms / 1000, why.why);
}

static int add_metric(struct buf *out, const char *name, const char *type, const char *help, double value) {
    return buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

uint32_t head_count_nodes(struct head *h) {
    pthread_mutex_lock(&h->lock);
    uint32_t n = h->snapshot.brain.n_nodes;
    pthread_mutex_unlock(&h->lock);
    return n;
}

void head_step_cost(const struct head *h, double *us, double *n) {
    *us = (double)atomic_load(&h->result_us);
    *n = (double)atomic_load(&h->n_results);
}

// What a holder is at the moment, in one word.
enum role { ROLE_SERVING, ROLE_SHADOW, ROLE_SPARE, ROLE_LOADING, ROLE_FEEDING, ROLE_N };
static const char *const role_name[ROLE_N] = {"serving", "shadow", "spare", "loading", "feeding"};

static enum role role_of(enum cluster_holding phase, uint32_t place) {
    if (phase == HOLDING_LOADING) return ROLE_LOADING;
    if (phase == HOLDING_FEEDING) return ROLE_FEEDING;
    if (place == 0) return ROLE_SERVING;
    return phase == HOLDING_LEVEL ? ROLE_SHADOW : ROLE_SPARE;
}

// What the node itself said of a stage that it holds; NULL: nothing yet.
static const struct links_stage *stage_at(const struct head_snapshot *s, uint64_t node, uint32_t stage) {
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        if (s->node[i].node != node || s->node[i].epoch != s->brain.epoch) continue;
        for (uint32_t k = 0; k < s->node[i].n_stages; k++)
            if (s->node[i].stage[k].stage == stage) return &s->node[i].stage[k];
    }
    return NULL;
}

struct holder_sums {
    uint32_t n[ROLE_N];
    uint64_t lag_us; // of the shadow that is furthest behind
};

static void sum_holders(const struct head_snapshot *s, struct holder_sums *sums) {
    *sums = (struct holder_sums){0};
    for (uint32_t i = 0; i < s->brain.n_stages; i++) {
        const struct cluster_stage *c = &s->brain.cluster.stage[i];
        for (uint32_t k = 0; k < c->n; k++) {
            const struct links_stage *held = stage_at(s, c->holder[k].node, i);
            enum role role = role_of(c->holder[k].phase, k);
            sums->n[role]++;
            if (role == ROLE_SHADOW && held && held->lag_us > sums->lag_us) sums->lag_us = held->lag_us;
        }
    }
}

int head_metrics(void *head, struct buf *out) {
    struct head *h = head;
    uint64_t n = atomic_load(&h->n_results), us = atomic_load(&h->result_us);
    struct holder_sums sums;
    pthread_mutex_lock(&h->lock);
    const struct brain_status b = h->snapshot.brain;
    bool ready = h->snapshot.ready;
    uint64_t waited = h->snapshot.waited;
    sum_holders(&h->snapshot, &sums);
    pthread_mutex_unlock(&h->lock);
    struct journal_counts journal = {0};
    if (h->journal) journal_counts(h->journal, &journal);
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"loom_ready", "gauge", "1 after a token came through all stages of the route", ready},
        {"loom_route_epoch", "gauge", "Goes up with every change of the route", b.epoch},
        {"loom_nodes", "gauge", "Nodes that are joined", b.n_nodes},
        {"loom_stages", "gauge", "Stages of the route", b.n_stages},
        {"loom_kv_blocks", "gauge", "KV blocks of 64 tokens", b.n_blocks},
        {"loom_kv_blocks_used", "gauge", "KV blocks that sequences hold", b.blocks_used},
        {"loom_sequences_running", "gauge", "Sequences that hold KV blocks", b.n_running},
        {"loom_sequences_waiting", "gauge", "Sequences that wait for admission", b.n_waiting},
        {"loom_route_changes_total", "counter", "Routes that were set up", (double)b.n_route_changes},
        {"loom_nodes_lost_total", "counter", "Nodes that were lost", (double)b.n_nodes_lost},
        {"loom_promotions_total", "counter", "Stages that another holder took over without a new route",
         (double)b.cluster.n_promotions},
        {"loom_suspicions_total", "counter", "Nodes that were thought to be lost", (double)b.cluster.n_suspicions},
        {"loom_false_alarms_total", "counter", "Suspected nodes that were well", (double)b.cluster.n_false_alarms},
        {"loom_drained_total", "counter", "Nodes that handed over before they left", (double)b.cluster.n_drained},
        {"loom_waited_total", "counter", "Steps of serving stages that waited for a shadow's work; has to be 0",
         (double)waited},
        {"loom_stable_step", "gauge", "Last step of the epoch that every holder has", (double)b.cluster.stable},
        {"loom_shadow_lag_seconds", "gauge", "What the shadow furthest behind had to compute to be level",
         (double)sums.lag_us / 1e6},
        {"loom_preemptions_total", "counter", "Sequences that gave up their blocks", (double)b.n_preemptions},
        {"loom_steps_total", "counter", "Steps that were formed", (double)b.n_steps},
        {"loom_tokens_total", "counter", "Tokens that were drawn", (double)b.n_tokens},
        {"loom_prefill_rows_total", "counter", "Prompt rows that were computed", (double)b.n_prefill_rows},
        {"loom_journal_writes_total", "counter", "Writes to the journal", (double)journal.n_writes},
        {"loom_journal_write_seconds_total", "counter", "Time they took, beside the steps",
         (double)journal.write_us / 1e6},
        {"loom_journal_failures_total", "counter", "Writes that failed", (double)journal.n_failures},
        {"loom_head_step_results_total", "counter", "Step results that came back", (double)n},
        {"loom_head_step_seconds_total", "counter", "Head time from a result to the next step sent", (double)us / 1e6},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (add_metric(out, rows[i].name, rows[i].type, rows[i].help, rows[i].value)) return ERR_NOMEM;
    int rc = buf_addf(out, "# HELP loom_holders Holders of stages, by what they are now\n# TYPE loom_holders gauge\n");
    for (int i = 0; i < ROLE_N && !rc; i++)
        rc = buf_addf(out, "loom_holders{role=\"%s\"} %u\n", role_name[i], sums.n[i]);
    return rc;
}

static int add_holders(const struct head_snapshot *s, uint32_t stage, struct buf *out) {
    const struct cluster_stage *c = &s->brain.cluster.stage[stage];
    int rc = buf_addf(out, ",\"holders\":[");
    for (uint32_t i = 0; i < c->n && !rc; i++) {
        const struct links_stage *held = stage_at(s, c->holder[i].node, stage);
        struct links_stage none = {0};
        if (!held) held = &none;
        rc = buf_addf(out,
                      "%s{\"node\":%llu,\"role\":\"%s\",\"hot\":%s,\"suspect\":%s,\"accepted\":%llu,"
                      "\"done\":%llu,\"waiting_rows\":%u,\"lag_ms\":%.3f}",
                      i ? "," : "", (unsigned long long)c->holder[i].node, role_name[role_of(c->holder[i].phase, i)],
                      c->holder[i].hot ? "true" : "false", c->holder[i].suspect ? "true" : "false",
                      (unsigned long long)held->accepted, (unsigned long long)held->done, held->waiting_rows,
                      (double)held->lag_us / 1000);
    }
    return rc ? rc : buf_addf(out, "]}");
}

static int add_stages(const struct head_snapshot *snapshot, struct buf *out) {
    const struct plan *p = &snapshot->brain.plan;
    int rc = buf_addf(out, ",\"stages\":[");
    for (uint32_t i = 0; i < p->n_stages && !rc; i++) {
        const struct plan_stage *s = &p->stage[i];
        const struct cluster_stage *c = &snapshot->brain.cluster.stage[i];
        uint64_t node = c->n ? c->holder[0].node : s->node; // the plan is as old as the epoch
        rc = buf_addf(out,
                      "%s{\"node\":%llu,\"layers\":[%u,%u],\"weight_bytes\":%llu,\"kv_bytes\":%llu,"
                      "\"scratch_bytes\":%llu",
                      i ? "," : "", (unsigned long long)node, s->a, s->b, (unsigned long long)s->weight_bytes,
                      (unsigned long long)s->kv_bytes, (unsigned long long)s->scratch_bytes);
        if (!rc) rc = add_holders(snapshot, i, out);
    }
    if (!rc) rc = buf_addf(out, "],\"left_out\":[");
    for (uint32_t i = 0; i < p->n_left_out && !rc; i++) {
        rc = buf_addf(out, "%s{\"node\":%llu,\"why\":", i ? "," : "", (unsigned long long)p->left_out[i].node);
        if (!rc) rc = buf_add_json_string(out, p->left_out[i].why, strlen(p->left_out[i].why));
        if (!rc) rc = buf_add(out, "}", 1);
    }
    return rc ? rc : buf_add(out, "]", 1);
}

static int add_leaving(const struct cluster_view *v, uint64_t node, struct buf *out) {
    bool leaving = false, away = false;
    for (uint32_t i = 0; i < v->n_leaving; i++) {
        if (v->leaving[i].node != node) continue;
        leaving = true;
        away = v->leaving[i].away;
    }
    return buf_addf(out, ",\"leaving\":%s,\"away\":%s", leaving ? "true" : "false", away ? "true" : "false");
}

static int add_node(const struct cluster_view *v, const struct links_node *n, bool first, struct buf *out) {
    int rc = buf_addf(out, "%s{\"node\":%llu,\"name\":", first ? "" : ",", (unsigned long long)n->node);
    if (!rc) rc = buf_add_json_string(out, n->name, strlen(n->name));
    if (!rc) rc = buf_addf(out, ",\"address\":");
    if (!rc) rc = buf_add_json_string(out, n->address, strlen(n->address));
    if (!rc) rc = buf_addf(out, ",\"isa\":");
    if (!rc) rc = buf_add_json_string(out, n->isa, strlen(n->isa));
    if (!rc) rc = add_leaving(v, n->node, out);
    if (!rc) rc = buf_addf(out, ",\"epoch\":%u,\"stages\":[", n->epoch);
    for (uint32_t i = 0; i < n->n_stages && !rc; i++)
        rc = buf_addf(out, "%s{\"stage\":%u,\"layers\":[%u,%u]}", i ? "," : "", n->stage[i].stage, n->stage[i].a,
                      n->stage[i].b);
    if (rc) return rc;
    return buf_addf(out,
                    "],\"memory_bytes\":%llu,\"memory_used_bytes\":%llu,"
                    "\"blocks_used\":%u,\"slots_used\":%u,\"steps\":%llu,\"busy_us\":%llu,\"waited\":%llu,"
                    "\"sent_bytes\":%llu,\"received_bytes\":%llu,\"rtt_ms\":%.3f,\"silent_ms\":%.3f}",
                    (unsigned long long)n->memory_bytes, (unsigned long long)n->memory_used_bytes, n->blocks_used,
                    n->slots_used, (unsigned long long)n->steps, (unsigned long long)n->busy_us,
                    (unsigned long long)n->waited, (unsigned long long)n->sent_bytes,
                    (unsigned long long)n->received_bytes, n->rtt_ms, (double)n->silent_us / 1000);
}

// The snapshot is a few hundred KB at most and asked for rarely: written out under the lock rather than copied.
static int add_snapshot(const struct head *h, const struct head_snapshot *s, struct buf *out) {
    const struct brain_status *b = &s->brain;
    int rc = buf_addf(out, "{\"model\":");
    if (!rc) rc = buf_add_json_string(out, h->model_name, strlen(h->model_name));
    if (!rc)
        rc =
            buf_addf(out,
                     ",\"ready\":%s,\"route_up\":%s,\"epoch\":%u,\"context\":%u,\"kv_blocks\":%u,\"kv_blocks_used\":%u,"
                     "\"running\":%u,\"waiting\":%u,\"route_changes\":%llu,\"nodes_lost\":%llu,\"preemptions\":%llu,"
                     "\"steps\":%llu,\"tokens\":%llu,\"why\":",
                     s->ready ? "true" : "false", b->route_up ? "true" : "false", b->epoch, h->context, b->n_blocks,
                     b->blocks_used, b->n_running, b->n_waiting, (unsigned long long)b->n_route_changes,
                     (unsigned long long)b->n_nodes_lost, (unsigned long long)b->n_preemptions,
                     (unsigned long long)b->n_steps, (unsigned long long)b->n_tokens);
    if (!rc) rc = buf_add_json_string(out, b->why_down, strlen(b->why_down));
    if (!rc)
        rc = buf_addf(out,
                      ",\"stable\":%llu,\"promotions\":%llu,\"suspicions\":%llu,\"false_alarms\":%llu,"
                      "\"drained\":%llu,\"waited\":%llu",
                      (unsigned long long)b->cluster.stable, (unsigned long long)b->cluster.n_promotions,
                      (unsigned long long)b->cluster.n_suspicions, (unsigned long long)b->cluster.n_false_alarms,
                      (unsigned long long)b->cluster.n_drained, (unsigned long long)s->waited);
    if (!rc) rc = add_stages(s, out);
    if (!rc && h->local)
        rc = buf_addf(out, ",\"local\":{\"blocks_used\":%u,\"slots_used\":%u,\"steps\":%llu,\"busy_us\":%llu}",
                      s->local.blocks_used, s->local.slots_used, (unsigned long long)s->local.steps,
                      (unsigned long long)s->local.busy_us);
    if (!rc) rc = buf_addf(out, ",\"nodes\":[");
    for (uint32_t i = 0; i < s->n_nodes && !rc; i++) rc = add_node(&b->cluster, &s->node[i], i == 0, out);
    return rc ? rc : buf_addf(out, "]}");
}

int head_status(void *head, struct buf *out) {
    struct head *h = head;
    pthread_mutex_lock(&h->lock);
    int rc = add_snapshot(h, &h->snapshot, out);
    pthread_mutex_unlock(&h->lock);
    return rc;
}
