#include "plan/plan.h"

uint64_t plan_stage_bytes(const struct plan_model *m, uint32_t a, uint32_t b, uint32_t n_blocks) {
    uint64_t bytes = m->scratch_bytes + (uint64_t)(b - a) * n_blocks * m->kv_block_bytes;
    for (uint32_t i = a; i < b; i++) bytes += m->layer_bytes[i];
    if (a == 0) bytes += m->embed_bytes;
    bytes += b == m->n_layers ? m->head_bytes : n_blocks * m->log_block_bytes;
    return bytes;
}

static bool is_among(uint64_t node, const uint64_t *nodes, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (nodes[i] == node) return true;
    return false;
}

uint32_t plan_place(const struct plan_model *m, uint32_t a, uint32_t b, uint32_t n_blocks,
                    const struct plan_room *rooms, uint32_t n_rooms, const uint64_t *exclude, uint32_t n_exclude) {
    uint64_t need = plan_stage_bytes(m, a, b, n_blocks), best_free = 0;
    uint32_t best = n_rooms;
    for (uint32_t i = 0; i < n_rooms; i++) {
        const struct plan_room *r = &rooms[i];
        if (r->closed || r->n_stages >= LIMIT_NODE_STAGES || is_among(r->node, exclude, n_exclude)) continue;
        if (r->used_bytes > r->memory_bytes || r->memory_bytes - r->used_bytes < need) continue;
        uint64_t left = r->memory_bytes - r->used_bytes;
        bool better = best == n_rooms || (r->serves != rooms[best].serves ? !r->serves : left > best_free);
        if (!better) continue;
        best = i;
        best_free = left;
    }
    return best;
}

uint32_t plan_seconds(const struct plan_model *m, const struct plan *p, struct plan_room *rooms, uint32_t n_rooms,
                      uint32_t *second) {
    uint64_t bytes[LIMIT_STAGES];
    bool done[LIMIT_STAGES] = {false};
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        bytes[i] = plan_stage_bytes(m, p->stage[i].a, p->stage[i].b, p->n_blocks);
        second[i] = n_rooms;
    }
    for (uint32_t k = 0; k < p->n_stages; k++) {
        uint32_t i = 0; // the largest that is left
        while (done[i]) i++;
        for (uint32_t j = i + 1; j < p->n_stages; j++)
            if (!done[j] && bytes[j] > bytes[i]) i = j;
        done[i] = true;
        const struct plan_stage *s = &p->stage[i];
        second[i] = plan_place(m, s->a, s->b, p->n_blocks, rooms, n_rooms, &s->node, 1);
        if (second[i] < n_rooms) {
            rooms[second[i]].used_bytes += bytes[i];
            rooms[second[i]].n_stages++;
            n_found++;
        }
    }
    return n_found;
}
