// Added tokens: strings that stand for one token wherever they occur in a text, found before everything else. A set is
// a trie; matching is leftmost, longest, as HF tokenizers does it. Read-only after loading.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

struct added_token {
    int32_t id;
    bool single_word;    // not beside another word character
    bool lstrip, rstrip; // swallows white space on its left, right
    bool special;        // a control token: never made from text that came from a client
};

struct added {
    struct added_node *nodes; // [0] is the root
    size_t n_nodes, cap_nodes;
    struct added_token *tokens;
    size_t n_tokens, cap_tokens;
    bool starts[256]; // first bytes of all contents: the fast way past everything else
};

// Where control tokens may be made: nowhere (allow_special false), or everywhere but from the characters that end at
// one of the breaks, byte offsets in ascending order.
struct added_rule {
    bool allow_special;
    const size_t *breaks;
    size_t n_breaks;
};

struct added_match {
    size_t start, end; // bytes, white space that the token swallows included
    const struct added_token *token;
};

void added_fini(struct added *a);
// An empty content is ignored; a content that is there already keeps its first token. ERR_NOMEM.
int added_add(struct added *a, const uint8_t *content, size_t len_bytes, const struct added_token *token) MUST_CHECK;

// Finds the next token in text[*pos ..len). done is where the last match ended: no match reaches left of it. *pos is
// moved on behind the content that matched. False: there is none.
bool added_next(const struct added *a, const uint8_t *text, size_t len_bytes, const struct added_rule *rule,
                size_t done, size_t *pos, struct added_match *m);
