#include "text/added.h"
#include <stdlib.h>
#include <unictype.h>
#include <unistr.h>

struct added_node {
    int32_t child, sibling; // 0: none, as the root is nobody's child
    int32_t token;          // -1: no content ends here
    uint8_t byte;
};

void added_fini(struct added *a) {
    free(a->nodes);
    free(a->tokens);
    *a = (struct added){0};
}

static int new_node(struct added *a, uint8_t byte, int32_t *index) {
    if (a->n_nodes == a->cap_nodes) {
        size_t cap = a->cap_nodes ? a->cap_nodes * 2 : 64;
        struct added_node *nodes = cap > INT32_MAX ? NULL : realloc(a->nodes, cap * sizeof *nodes);
        if (!nodes) return ERR_NOMEM;
        a->nodes = nodes;
        a->cap_nodes = cap;
    }
    *index = (int32_t)a->n_nodes;
    a->nodes[a->n_nodes++] = (struct added_node){.token = -1, .byte = byte};
    return ERR_OK;
}

static int32_t child_of(const struct added *a, int32_t node, uint8_t byte) {
    int32_t c = a->nodes[node].child;
    while (c && a->nodes[c].byte != byte) c = a->nodes[c].sibling;
    return c;
}

int added_add(struct added *a, const uint8_t *content, size_t len_bytes, const struct added_token *token) {
    int32_t node = 0;
    if (len_bytes == 0) return ERR_OK;
    if (a->n_nodes == 0) {
        int rc = new_node(a, 0, &node);
        if (rc) return rc;
    }
    for (size_t i = 0; i < len_bytes; i++) {
        int32_t next = child_of(a, node, content[i]);
        if (!next) {
            int rc = new_node(a, content[i], &next);
            if (rc) return rc;
            a->nodes[next].sibling = a->nodes[node].child;
            a->nodes[node].child = next;
        }
        node = next;
    }
    if (a->nodes[node].token >= 0) return ERR_OK;
    if (a->n_tokens == a->cap_tokens) {
        size_t cap = a->cap_tokens ? a->cap_tokens * 2 : 16;
        struct added_token *tokens = realloc(a->tokens, cap * sizeof *tokens);
        if (!tokens) return ERR_NOMEM;
        a->tokens = tokens;
        a->cap_tokens = cap;
    }
    a->nodes[node].token = (int32_t)a->n_tokens;
    a->tokens[a->n_tokens++] = *token;
    a->starts[content[0]] = true;
    return ERR_OK;
}

static const struct added_token *longest_at(const struct added *a, const uint8_t *text, size_t len, size_t *n) {
    int32_t node = 0, found = -1;
    for (size_t i = 0; i < len; i++) {
        node = child_of(a, node, text[i]);
        if (!node) break;
        if (a->nodes[node].token >= 0) {
            found = a->nodes[node].token;
            *n = i + 1;
        }
    }
    return found < 0 ? NULL : &a->tokens[found];
}

static bool is_word(ucs4_t c) {
    return uc_is_property_alphabetic(c) || uc_is_property_join_control(c) ||
           uc_is_general_category_withtable(c, UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd | UC_CATEGORY_MASK_Pc);
}

static bool char_before(const uint8_t *text, size_t at, ucs4_t *c, size_t *n) {
    if (at == 0) return false;
    const uint8_t *p = u8_prev(c, text + at, text);
    *n = p ? (size_t)(text + at - p) : 0;
    return p != NULL;
}

static bool char_after(const uint8_t *text, size_t len, size_t at, ucs4_t *c, size_t *n) {
    if (at == len) return false;
    *n = (size_t)u8_mbtouc(c, text + at, len - at);
    return true;
}

static bool stands_alone(const uint8_t *text, size_t len, size_t start, size_t end) {
    ucs4_t c;
    size_t n;
    if (char_before(text, start, &c, &n) && is_word(c)) return false;
    return !(char_after(text, len, end, &c, &n) && is_word(c));
}

static bool holds_break(const struct added_rule *rule, size_t start, size_t end) {
    size_t lo = 0, hi = rule->n_breaks; // first break > start
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (rule->breaks[mid] > start)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < rule->n_breaks && rule->breaks[lo] <= end;
}

static void swallow_space(const uint8_t *text, size_t len, size_t done, struct added_match *m) {
    ucs4_t c;
    size_t n;
    if (m->token->lstrip)
        while (m->start > done && char_before(text, m->start, &c, &n) && uc_is_property_white_space(c)) m->start -= n;
    if (m->token->rstrip)
        while (char_after(text, len, m->end, &c, &n) && uc_is_property_white_space(c)) m->end += n;
}

bool added_next(const struct added *a, const uint8_t *text, size_t len_bytes, const struct added_rule *rule,
                size_t done, size_t *pos, struct added_match *m) {
    if (a->n_nodes == 0) return false;
    for (size_t i = *pos; i < len_bytes; i++) {
        if (!a->starts[text[i]]) continue;
        size_t n = 0;
        const struct added_token *t = longest_at(a, text + i, len_bytes - i, &n);
        if (!t) continue;
        size_t end = i + n;
        bool refused = t->special && (!rule->allow_special || holds_break(rule, i, end));
        // White space that the token before has swallowed cannot begin another one.
        refused = refused || i < done || (t->single_word && !stands_alone(text, len_bytes, i, end));
        if (refused) {
            i = end - 1;
            continue;
        }
        *m = (struct added_match){.start = i, .end = end, .token = t};
        swallow_space(text, len_bytes, done, m);
        *pos = end;
        return true;
    }
    *pos = len_bytes;
    return false;
}
