#include "model/rope.h"

#include "model/fields.h"
#include <math.h>
#include <string.h>

static const char FILE_NAME[] = "config.json";

#define QUARTER_TURN 0x1.45f306dc9c883p-1 // 2/pi
#define PI           0x1.921fb54442d18p+1

struct rope {
    double theta, inv_freq[LIMIT_HEAD_DIM / 2];
    uint32_t n_freq;
    double factor, attention_factor; // attention_factor 0: not given
    const json_t *o;                 // where the parameters of the scaling stand; NULL: nowhere
};

static int scale_default(struct rope *r, const struct hparams *h, struct err *e) {
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

static int scale_linear(struct rope *r, const struct hparams *h, struct err *e) {
    (void)h;
    int rc = need_factor(r, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < r->n_freq; i++) r->inv_freq[i] /= r->factor;
    r->attention_factor = 1;
    return ERR_OK;
}

// Long waves are slowed down by the factor, short ones stay, and between the two bounds it goes smoothly.
static int scale_llama3(struct rope *r, const struct hparams *h, struct err *e) {
    double low = 0, high = 0, old_context = h->max_context;
    int rc = need_factor(r, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "low_freq_factor", 1e-3, 1e6, &low, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "high_freq_factor", 1e-3, 1e6, &high, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "original_max_position_embeddings", 1, 1e9, &old_context, e);
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

// Pairs below `low` keep their frequency, those above `high` are interpolated, a ramp lies between.
static int scale_yarn(struct rope *r, const struct hparams *h, struct err *e) {
    double old_context = h->max_context, fast = 32, slow = 1, mscale = 0, mscale_all = 0;
    bool truncate = true;
    uint32_t dim = 2 * r->n_freq;
    int rc = fields_number(FILE_NAME, r->o, "original_max_position_embeddings", 1, 1e9, &old_context, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "beta_fast", 1e-6, 1e6, &fast, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "beta_slow", 1e-6, 1e6, &slow, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "mscale", 0, 1e3, &mscale, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "mscale_all_dim", 0, 1e3, &mscale_all, e);
    if (!rc) rc = fields_number(FILE_NAME, r->o, "attention_factor", 1e-3, 1e3, &r->attention_factor, e);
    if (!rc) rc = fields_bool(FILE_NAME, r->o, "truncate", &truncate, e);
    if (!rc) rc = need_factor(r, e);
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
    return ERR_OK;
}

static const struct {
    const char *name;
    int (*scale)(struct rope *r, const struct hparams *h, struct err *e);
} SCALINGS[] = {{"default", scale_default}, {"linear", scale_linear}, {"llama3", scale_llama3}, {"yarn", scale_yarn}};

// "rope_type", or "type" as older files spell it; none: default.
static int read_type(const struct rope *r, const char **type, struct err *e) {
    *type = "default";
    if (!r->o) return ERR_OK;
    int rc = fields_string(FILE_NAME, r->o, "type", type, e);
    return rc ? rc : fields_string(FILE_NAME, r->o, "rope_type", type, e);
}

static int find_parameters(const json_t *config, struct rope *r, struct err *e) {
    const json_t *now = fields_get(config, "rope_parameters"), *old = fields_get(config, "rope_scaling");
    r->o = now ? now : old;
    if (r->o && !json_is_object(r->o))
        return err_set(e, ERR_FORMAT, "%s: %s is not an object", FILE_NAME, now ? "rope_parameters" : "rope_scaling");
    double part = 1;
    r->theta = 10000;
    int rc = fields_number(FILE_NAME, config, "rope_theta", 1.0001, 1e15, &r->theta, e);
    if (!rc) rc = fields_number(FILE_NAME, config, "partial_rotary_factor", 0, 1, &part, e);
    if (!rc && r->o) rc = fields_number(FILE_NAME, r->o, "rope_theta", 1.0001, 1e15, &r->theta, e);
    if (!rc && r->o) rc = fields_number(FILE_NAME, r->o, "partial_rotary_factor", 0, 1, &part, e);
    if (!rc && part != 1) return err_set(e, ERR_UNSUPPORTED, "%s: partial_rotary_factor other than 1", FILE_NAME);
    return rc;
}

int rope_parse(const json_t *config, struct hparams *h, struct err *e) {
    struct rope r = {.n_freq = h->head_dim / 2};
    const char *type;
    int rc = find_parameters(config, &r, e);
    if (!rc) rc = read_type(&r, &type, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < r.n_freq; i++) r.inv_freq[i] = 1 / pow(r.theta, 2.0 * i / h->head_dim);
    size_t n = sizeof SCALINGS / sizeof *SCALINGS, at = 0;
    while (at < n && strcmp(SCALINGS[at].name, type) != 0) at++;
    if (at == n)
        return err_set(e, ERR_UNSUPPORTED, "%s: rope_type %.64s; default, linear, llama3 and yarn are supported",
                       FILE_NAME, type);
    if ((rc = SCALINGS[at].scale(&r, h, e))) return rc;
    h->n_freq = r.n_freq;
    h->rope_factor = (float)r.attention_factor;
    for (uint32_t i = 0; i < r.n_freq; i++) h->fq[i] = (double)(float)r.inv_freq[i] * QUARTER_TURN;
    return ERR_OK;
}
