// Metadata on its way into JSON, for gguf_config*.c only. After the first failure nothing more happens: rc says it.
#pragma once
#include "gguf/gguf.h"
#include "weights/tensors.h"
#include <jansson.h>

enum { GGUF_KEYS_DIGITS = 15 }; // of the numbers in the JSON text

struct gguf_keys {
    const struct tensors *t;
    const struct gguf *g;
    char arch[32];     // keys of the architecture begin with it
    json_t *o;         // what is made
    uint32_t n_layers; // computed ones
    uint32_t n_blocks; // all that the file has
    uint32_t head_dim;
    struct err *e;
    int rc;
};

// name: without the architecture.
const struct gguf_value *gguf_keys_find(const struct gguf_keys *k, const char *name);
uint32_t gguf_keys_u32(struct gguf_keys *k, const char *name, uint32_t lo, uint32_t hi, uint32_t fallback);
double gguf_keys_number(struct gguf_keys *k, const char *name, double lo, double hi, double fallback);
// The same for a key that stands by itself.
double gguf_keys_plain_number(struct gguf_keys *k, const char *key, double lo, double hi, double fallback);
bool gguf_keys_bool(struct gguf_keys *k, const char *name, bool fallback);
// A number, or a list of one for each block of which those of the computed layers are all the same.
uint32_t gguf_keys_layers_u32(struct gguf_keys *k, const char *name, uint32_t lo, uint32_t hi, uint32_t fallback);
int gguf_keys_missing(struct gguf_keys *k, const char *name); // ERR_FORMAT

// Sets o[key], taking over v; NULL counts as no memory.
void gguf_keys_set(struct gguf_keys *k, json_t *o, const char *key, json_t *v);
// A number of f32 by the shortest decimal that is this f32: 1e-06 as the folder has it, not 9.99999997e-07.
json_t *gguf_keys_real(double v);

// The RoPE settings: gguf_config_rope.c.
void gguf_keys_rope(struct gguf_keys *k);
