#include "model/rope.h"

#include "model/family.h"
#include "model/fields.h"
#include <math.h>
#include <string.h>

static const char FILE_NAME[] = "config.json";

#define QUARTER_TURN 0x1.45f306dc9c883p-1 // 2/pi
#define PI           0x1.921fb54442d18p+1

// One set of frequencies on its way.
struct rope {
    const json_t *config;
    const json_t *o; // its parameters; NULL: it has none
    double theta, inv_freq[LIMIT_HEAD_DIM / 2];
    uint32_t n_freq;
    double factor, attention_factor; // 0: not given
    struct rope_set *to;
};

static void finish(const struct rope *r, struct rope_set *to) {
    to->n_freq = r->n_freq;
    to->factor = (float)r->attention_factor;
    for (uint32_t i = 0; i < r->n_freq; i++) to->fq[i] = (double)(float)r->inv_freq[i] * QUARTER_TURN;
}

const json_t *rope_object(const json_t *config) {
    const json_t *now = fields_get(config, "rope_parameters");
    return now ? now : fields_get(config, "rope_scaling");
}

int rope_original_context(const json_t *config, const json_t *parameters, const struct hparams *h, double *context,
                          struct err *e) {
    static const char KEY[] = "original_max_position_embeddings";
    *context = h->max_context;
    int rc = fields_number(FILE_NAME, parameters, KEY, 1, 1e9, context, e);
    return rc ? rc : fields_number(FILE_NAME, config, KEY, 1, 1e9, context, e);
}

static int scale_default(struct rope *r, struct hparams *h, struct err *e) {
    (void)h;
    (void)e;
    r->attention_factor = 1;
    return ERR_OK;
}

static int need_factor(struct rope *r, struct err *e) {
    int rc = fields_number(FILE_NAME, r->o, "factor", 1, 1e6, &r->factor, e);
    if (rc) return rc;
    if (r->factor == 0) return err_set(e, ERR_FORMAT, "%s: the RoPE scaling has no factor", FILE_NAME);
    return ERR_OK;
}

static int scale_linear(struct rope *r, struct hparams *h, struct err *e) {
    (void)h;
    int rc = need_factor(r, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < r->n_freq; i++) r->inv_freq[i] /= r->factor;
    r->attention_factor = 1;
    return ERR_OK;
}

// Long waves are slowed down by the factor, short ones stay, and between the two bounds it goes smoothly.
static int scale_llama3(struct rope *r, struct hparams *h, struct err *e) {
    double low = 0, high = 0, old_context;
    int rc = need_factor(r, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "low_freq_factor", 1e-3, 1e6, &low, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "high_freq_factor", 1e-3, 1e6, &high, e);
    if (!rc) rc = rope_original_context(r->config, r->o, h, &old_context, e);
    if (rc) return rc;
    if (!(low > 0 && high > low))
        return err_set(e, ERR_FORMAT, "%s: low_freq_factor is not below high_freq_factor", FILE_NAME);
    for (uint32_t i = 0; i < r->n_freq; i++) {
        double f = r->inv_freq[i], wave = 2 * PI / f;
        double smooth = (old_context / wave - low) / (high - low);
        if (wave > old_context / low) smooth = 0;
        if (wave < old_context / high) smooth = 1;
        r->inv_freq[i] = (1 - smooth) * f / r->factor + smooth * f;
    }
    r->attention_factor = 1;
    return ERR_OK;
}

static double mscale_of(double scale, double mscale) { return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1; }

// The pair at which a wave makes this many rotations over the original context.
static double correction_pair(double rotations, double context, double theta, uint32_t dim) {
    return dim * log(context / (rotations * 2 * PI)) / (2 * log(theta));
}

// Where no factor is given it is what the window grew by.
static int factor_or_growth(struct rope *r, const struct hparams *h, double old_context, struct err *e) {
    r->factor = h->max_context / old_context;
    return fields_number(FILE_NAME, r->o, "factor", 1, 1e6, &r->factor, e);
}

// Pairs below `low` keep their frequency, those above `high` are interpolated, a ramp lies between.
static int scale_yarn(struct rope *r, struct hparams *h, struct err *e) {
    double old_context, fast = 32, slow = 1, mscale = 0, mscale_all = 0;
    double scale = 1; // GGUF files may have a second factor on top
    bool truncate = true;
    uint32_t dim = 2 * r->n_freq;
    int rc = rope_original_context(r->config, r->o, h, &old_context, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "beta_fast", 1e-6, 1e6, &fast, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "beta_slow", 1e-6, 1e6, &slow, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "mscale", 0, 1e3, &mscale, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "mscale_all_dim", 0, 1e3, &mscale_all, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "attention_factor", 1e-3, 1e3, &r->attention_factor, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "loom_attention_scale", 1e-3, 1e3, &scale, e);
    if (!rc) rc = fields_bool(FILE_NAME, r->o, "truncate", &truncate, e);
    if (!rc) rc = factor_or_growth(r, h, old_context, e);
    if (rc) return rc;
    double low = correction_pair(fast, old_context, r->theta, dim);
    double high = correction_pair(slow, old_context, r->theta, dim);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (high == low) high += 0.001;
    for (uint32_t i = 0; i < r->n_freq; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        r->inv_freq[i] = r->inv_freq[i] / r->factor * ramp + r->inv_freq[i] * (1 - ramp);
    }
    if (r->attention_factor == 0)
        r->attention_factor = mscale > 0 && mscale_all > 0
                                  ? mscale_of(r->factor, mscale) / mscale_of(r->factor, mscale_all)
                                  : mscale_of(r->factor, 1);
    r->attention_factor *= scale;
    return ERR_OK;
}

// One divisor for each frequency.
static int divide(struct rope *r, const json_t *list, const char *key, struct err *e) {
    if (!json_is_array(list) || json_array_size(list) != r->n_freq)
        return err_set(e, ERR_FORMAT, "%s: %s is not a list of %u numbers", FILE_NAME, key, r->n_freq);
    for (uint32_t i = 0; i < r->n_freq; i++) {
        const json_t *v = json_array_get(list, i);
        double d = json_number_value(v);
        if (!json_is_number(v) || !(d >= 1e-3 && d <= 1e9))
            return err_set(e, ERR_FORMAT, "%s: %s[%u] is not a number from 0.001 to 1e9", FILE_NAME, key, i);
        r->inv_freq[i] /= d;
    }
    return ERR_OK;
}

// Short texts and long ones have divisors of their own; model_set_context chooses.
static int scale_longrope(struct rope *r, struct hparams *h, struct err *e) {
    double old_context;
    int rc = rope_original_context(r->config, r->o, h, &old_context, e);
    if (!rc) rc = factor_or_growth(r, h, old_context, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "attention_factor", 1e-3, 1e3, &r->attention_factor, e);
    if (!rc && r->to != &h->rope[0])
        rc = err_set(e, ERR_UNSUPPORTED, "%s: rope_type longrope of the layers with a window", FILE_NAME);
    if (rc) return rc;
    if (r->attention_factor == 0)
        r->attention_factor = r->factor <= 1 || old_context <= 1 ? 1 : sqrt(1 + log(r->factor) / log(old_context));
    struct rope longer = *r;
    rc = divide(r, fields_get(r->o, "short_factor"), "short_factor", e);
    if (!rc) rc = divide(&longer, fields_get(r->o, "long_factor"), "long_factor", e);
    if (rc) return rc;
    finish(r, &h->rope_short);
    finish(&longer, &h->rope_long);
    h->rope_short_context = (uint32_t)old_context;
    return ERR_OK;
}

static const struct {
    const char *name;
    int (*scale)(struct rope *r, struct hparams *h, struct err *e);
} SCALINGS[] = {{"default", scale_default}, {"linear", scale_linear},     {"llama3", scale_llama3},
                {"yarn", scale_yarn},       {"longrope", scale_longrope}, {"su", scale_longrope}};

// "rope_type", or "type" as older files spell it; none: default.
static int read_type(const struct rope *r, const char **type, struct err *e) {
    *type = "default";
    if (!r->o) return ERR_OK;
    int rc = fields_string(FILE_NAME, r->o, "type", type, e);
    return rc ? rc : fields_string(FILE_NAME, r->o, "rope_type", type, e);
}

// How many pairs of a head are turned: partial_rotary_factor, or in older files rotary_dim (MiniMax). Files that have
// rope_parameters may carry a rotary_dim along, which does not count any more.
static int read_width(struct rope *r, const struct hparams *h, struct err *e) {
    uint32_t dim = h->head_dim;
    double part = 0;
    int rc = ERR_OK;
    if (!fields_get(r->config, "rope_parameters"))
        rc = fields_u32(FILE_NAME, r->config, "rotary_dim", 2, h->head_dim, &dim, e);
    if (!rc) rc = fields_number(FILE_NAME, r->config, "partial_rotary_factor", 0, 1, &part, e);
    if (!rc && r->o) rc = fields_number(FILE_NAME, r->o, "partial_rotary_factor", 0, 1, &part, e);
    if (rc) return rc;
    if (part > 0) dim = (uint32_t)(h->head_dim * part);
    if (dim < 2 || dim % 2)
        return err_set(e, ERR_UNSUPPORTED, "%s: RoPE over %u of %u values of a head; an even number is supported",
                       FILE_NAME, dim, h->head_dim);
    r->n_freq = dim / 2;
    return ERR_OK;
}

// One set, from the object o (or NULL). theta: where o names none. With is_plain its scaling is left out.
static int make_set(const json_t *config, const json_t *o, double theta, bool is_plain, struct hparams *h,
                    struct rope_set *to, struct err *e) {
    struct rope r = {.config = config, .o = o, .theta = theta, .to = to};
    const char *type;
    if (o && !json_is_object(o))
        return err_set(e, ERR_FORMAT, "%s: %s is not an object", FILE_NAME,
                       fields_get(config, "rope_parameters") ? "rope_parameters" : "rope_scaling");
    int rc = o ? fields_number(FILE_NAME, o, "rope_theta", 1.0001, 1e15, &r.theta, e) : ERR_OK;
    if (!rc) rc = read_type(&r, &type, e);
    if (!rc) rc = read_width(&r, h, e);
    if (rc) return rc;
    if (is_plain) type = "default";
    for (uint32_t i = 0; i < r.n_freq; i++) r.inv_freq[i] = 1 / pow(r.theta, (double)i / r.n_freq);
    const json_t *factors = fields_get(config, "loom_rope_factors");
    if (factors && !is_plain && (rc = divide(&r, factors, "loom_rope_factors", e))) return rc;
    size_t n = sizeof SCALINGS / sizeof *SCALINGS, at = 0;
    while (at < n && strcmp(SCALINGS[at].name, type) != 0) at++;
    if (at == n)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: rope_type %.64s; default, linear, llama3, yarn and longrope are supported", FILE_NAME,
                       type);
    rc = SCALINGS[at].scale(&r, h, e);
    if (!rc) finish(&r, to);
    return rc;
}

static bool is_same(const struct rope_set *a, const struct rope_set *b) {
    bool same = a->n_freq == b->n_freq && a->factor == b->factor;
    for (uint32_t i = 0; i < a->n_freq && same; i++) same = a->fq[i] == b->fq[i];
    return same;
}

// The second set is that of the layers with a window. Two that are alike are one.
static int second_set(const json_t *config, const json_t *own, double theta, struct hparams *h, struct err *e) {
    struct rope_set *to = &h->rope[1];
    const json_t *o = own ? own : rope_object(config);
    double local = 10000;
    int rc = ERR_OK;
    if (own) {
        rc = make_set(config, own, theta, false, h, to, e);
    } else if (h->family->window_rope == WINDOW_ROPE_LOCAL) {
        rc = fields_number(FILE_NAME, config, "rope_local_base_freq", 1.0001, 1e15, &local, e);
        if (!rc) rc = make_set(config, NULL, local, true, h, to, e);
    } else {
        rc = make_set(config, o, theta, true, h, to, e);
    }
    if (!rc && h->rope_short_context == 0 && is_same(to, &h->rope[0])) *to = (struct rope_set){0};
    return rc;
}

int rope_parse(const json_t *config, struct hparams *h, struct err *e) {
    const json_t *all = rope_object(config);
    const json_t *full = fields_get(all, "full_attention"), *window = fields_get(all, "sliding_attention");
    bool by_type = json_is_object(full) || json_is_object(window), any = false;
    double theta = 10000;
    int rc = fields_number(FILE_NAME, config, "rope_theta", 1.0001, 1e15, &theta, e);
    if (!rc) rc = make_set(config, by_type ? full : all, theta, false, h, &h->rope[0], e);
    for (uint32_t i = 0; i < h->n_layers; i++) any |= h->window_layer[i];
    if (!rc && any && (by_type ? window != NULL : h->family->window_rope != WINDOW_ROPE_SAME))
        rc = second_set(config, by_type ? window : NULL, theta, h, e);
    for (uint32_t i = 0; i < h->n_layers; i++)
        if (h->window_layer[i] && h->rope_of[i] != ROPE_NONE && h->rope[1].n_freq) h->rope_of[i] = 1;
    if (!rc) model_set_context(h, h->max_context);
    return rc;
}
