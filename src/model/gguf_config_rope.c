// RoPE: the base, how many values of a head turn, and one of the scalings. Divisors of the single frequencies are
// tensors in GGUF files.
#include "model/gguf_keys.h"

#include "base/limits.h"
#include "weights/quantize.h"
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The tensor's values as a list, NULL if there is no such tensor. n: how many are right.
static json_t *factors(struct gguf_keys *k, const char *name, uint32_t n) {
    const struct tensor *t = tensors_find(k->t, name);
    float values[LIMIT_HEAD_DIM / 2];
    if (!t || k->rc) return NULL;
    if (t->n_dims != 1 || t->dim[0] != n || n > LIMIT_HEAD_DIM / 2 || !dtype_info(t->type)->is_float) {
        k->rc = err_set(k->e, ERR_FORMAT, "tensor %s: not %u floats, one for each pair of a head that turns", name, n);
        return NULL;
    }
    k->rc = floats_check(t->type, t->data, n, k->e);
    if (k->rc) {
        if (k->e) err_prefix(k->e, "tensor %s", name);
        return NULL;
    }
    floats_to_f32(t->type, t->data, n, values);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (json_array_append_new(list, gguf_keys_real((double)values[i])))
            k->rc = err_set(k->e, ERR_NOMEM, "no memory for config.json");
    return list;
}

static void copy_number(struct gguf_keys *k, json_t *o, const char *name, const char *key, double lo, double hi) {
    if (gguf_keys_find(k, name)) gguf_keys_set(k, o, key, gguf_keys_real(gguf_keys_number(k, name, lo, hi, lo)));
}

static void put_text(struct gguf_keys *k, json_t *o, const char *text) {
    gguf_keys_set(k, o, "rope_type", json_string(text));
}

static void put_original(struct gguf_keys *k, json_t *o) {
    const uint32_t n = gguf_keys_u32(k, "rope.scaling.original_context_length", 1, INT32_MAX, 0);
    if (n) gguf_keys_set(k, o, "original_max_position_embeddings", json_integer(n));
}

// Where the multiplier of the logarithm is given, the attention factor is the quotient of two (DeepSeek's reading).
static void put_yarn(struct gguf_keys *k, json_t *o) {
    put_text(k, o, "yarn");
    copy_number(k, o, "rope.scaling.factor", "factor", 1, 1e6);
    put_original(k, o);
    copy_number(k, o, "rope.scaling.yarn_beta_fast", "beta_fast", 1e-6, 1e6);
    copy_number(k, o, "rope.scaling.yarn_beta_slow", "beta_slow", 1e-6, 1e6);
    copy_number(k, o, "rope.scaling.yarn_attn_factor", "attention_factor", 1e-3, 1e3);
    copy_number(k, o, "rope.scaling.attn_factor", "loom_attention_scale", 1e-3, 1e3);
    if (gguf_keys_number(k, "rope.scaling.yarn_log_multiplier", 0, 1e3, 0) > 0) {
        gguf_keys_set(k, o, "mscale", json_real(1));
        copy_number(k, o, "rope.scaling.yarn_log_multiplier", "mscale_all_dim", 0, 1e3);
    }
    if (!k->rc && gguf_keys_number(k, "rope.scaling.yarn_ext_factor", -DBL_MAX, DBL_MAX, 1) != 1)
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s.rope.scaling.yarn_ext_factor: only 1 is computed", k->arch);
}

static void put_longrope(struct gguf_keys *k, json_t *o, uint32_t n_freq) {
    put_text(k, o, "longrope");
    put_original(k, o);
    copy_number(k, o, "rope.scaling.attn_factor", "attention_factor", 1e-3, 1e3);
    json_t *longer = factors(k, "rope_factors_long.weight", n_freq);
    json_t *shorter = factors(k, "rope_factors_short.weight", n_freq);
    if (!k->rc && (!longer || !shorter))
        k->rc =
            err_set(k->e, ERR_FORMAT, "longrope: no tensors rope_factors_long.weight and rope_factors_short.weight");
    if (longer) gguf_keys_set(k, o, "long_factor", longer);
    if (shorter) gguf_keys_set(k, o, "short_factor", shorter);
}

// Files that name no type may have factors all the same.
static void put_scaling(struct gguf_keys *k, json_t *o, uint32_t n_freq) {
    char key[64];
    struct gguf_string type = {"none", 4};
    snprintf(key, sizeof key, "%s.rope.scaling.type", k->arch);
    if (!k->rc) k->rc = gguf_get_string(k->g, key, &type, k->e);
    if (k->rc) return;
    char text[32];
    snprintf(text, sizeof text, "%.*s", type.len_bytes < sizeof text ? (int)type.len_bytes : 31, type.text);
    const double scale = gguf_keys_number(k, "rope.scaling.attn_factor", 1e-3, 1e3, 1);
    const double factor =
        gguf_keys_number(k, "rope.scaling.factor", 0, 1e6, gguf_keys_number(k, "rope.scale_linear", 0, 1e6, 1));
    const bool none = strcmp(text, "none") == 0, has_factors = tensors_find(k->t, "rope_factors_long.weight") != NULL;
    if (strcmp(text, "longrope") == 0 || (none && has_factors)) {
        put_longrope(k, o, n_freq);
    } else if (strcmp(text, "yarn") == 0) {
        put_yarn(k, o);
    } else if (!k->rc && scale != 1) {
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s.rope.scaling.attn_factor: %g; only yarn and longrope have one",
                        k->arch, scale);
    } else if (strcmp(text, "linear") == 0 || (none && !gguf_keys_find(k, "rope.scaling.type") && factor > 1)) {
        put_text(k, o, factor > 1 ? "linear" : "default");
        if (factor > 1) gguf_keys_set(k, o, "factor", gguf_keys_real(factor));
    } else if (!none) {
        k->rc = err_set(k->e, ERR_UNSUPPORTED, "key %s: %s; none, linear, yarn and longrope are supported", key, text);
    } else {
        put_text(k, o, "default");
    }
}

// A share of the head that gives exactly this many values when it is multiplied and cut, also after it was written with
// the digits of the config.
static double share(uint32_t dim, uint32_t head_dim) {
    char text[32];
    snprintf(text, sizeof text, "%.*g", GGUF_KEYS_DIGITS, (double)dim / head_dim);
    const double part = strtod(text, NULL);
    return (uint32_t)(head_dim * part) == dim ? part : (dim + 0.25) / head_dim;
}

void gguf_keys_rope(struct gguf_keys *k) {
    const uint32_t dim = gguf_keys_u32(k, "rope.dimension_count", 2, k->head_dim, k->head_dim);
    const double theta = gguf_keys_number(k, "rope.freq_base", 1.0001, 1e15, 10000);
    const double window_theta = gguf_keys_number(k, "rope.freq_base_swa", 1.0001, 1e15, theta);
    json_t *o = json_object();
    put_scaling(k, o, dim / 2);
    if (gguf_keys_find(k, "attention.temperature_scale"))
        copy_number(k, o, "attention.temperature_scale", "llama_4_scaling_beta", 0, 100);
    gguf_keys_set(k, k->o, "partial_rotary_factor", json_real(share(dim, k->head_dim)));
    gguf_keys_set(k, k->o, "rope_theta", gguf_keys_real(theta));
    json_t *divisors = factors(k, "rope_freqs.weight", dim / 2);
    if (divisors) gguf_keys_set(k, k->o, "loom_rope_factors", divisors);
    const bool local = strcmp(k->arch, "gemma3") == 0;
    if (local && gguf_keys_find(k, "rope.freq_base_swa"))
        gguf_keys_set(k, k->o, "rope_local_base_freq", gguf_keys_real(window_theta));
    if (local || window_theta == theta) {
        gguf_keys_set(k, k->o, "rope_scaling", o);
        return;
    }
    json_t *both = json_object(), *window = json_object();
    gguf_keys_set(k, window, "rope_type", json_string("default"));
    gguf_keys_set(k, window, "rope_theta", gguf_keys_real(window_theta));
    gguf_keys_set(k, both, "full_attention", o);
    gguf_keys_set(k, both, "sliding_attention", window);
    gguf_keys_set(k, k->o, "rope_parameters", both);
}
