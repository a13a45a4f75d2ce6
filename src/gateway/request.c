#include "gateway/request.h"

#include "os/random.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHAT = 1, COMPLETION = 2, BOTH = 3, NAME_MAX_BYTES = 64 };

static int wrong_type(struct api_error *e, const char *name, const char *right, const json_t *v) {
    return errors_set(e, 400, "invalid_type", name, "'%s' must be %s, not %s", name, right, request_type_name(v));
}

const char *request_type_name(const json_t *v) {
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

static int take_number(const char *name, const json_t *v, double low, double high, float *out, struct api_error *e) {
    if (!json_is_number(v)) return wrong_type(e, name, "a number", v);
    double x = json_number_value(v);
    if (!(x >= low && x <= high)) {
        return errors_set(e, 400, "invalid_value", name, "'%s' is %.9g: must be from %g to %g", name, x, low, high);
    }
    *out = (float)x;
    return ERR_OK;
}

static int take_integer(const char *name, const json_t *v, int64_t low, int64_t high, int64_t *out,
                        struct api_error *e) {
    // 1.0 is an integer for a client whose language has one kind of number.
    double x = json_number_value(v);
    bool whole = json_is_integer(v) || (json_is_real(v) && x == floor(x) && fabs(x) < 0x1p53);
    if (!whole) return wrong_type(e, name, "an integer", v);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : (int64_t)x;
    if (i < low || i > high) {
        return errors_set(e, 400, "invalid_value", name, "'%s' is %lld: must be from %lld to %lld", name, (long long)i,
                          (long long)low, (long long)high);
    }
    *out = i;
    return ERR_OK;
}

static int take_bool(const char *name, const json_t *v, bool *out, struct api_error *e) {
    if (!json_is_boolean(v)) return wrong_type(e, name, "a boolean", v);
    *out = json_is_true(v);
    return ERR_OK;
}

static int take_model(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (!json_is_string(v)) return wrong_type(e, name, "a string", v);
    r->model = json_string_value(v);
    return ERR_OK;
}

static int take_messages(struct request *r, const char *name, json_t *v, struct api_error *e) {
    (void)r, (void)name;
    return request_check_messages(v, e);
}

static int take_prompt(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (!json_is_string(v) && !json_is_array(v)) {
        return wrong_type(e, name, "a string, an array of strings, an array of ids or an array of arrays of ids", v);
    }
    r->prompt = v;
    return ERR_OK;
}

static int take_stream(struct request *r, const char *name, json_t *v, struct api_error *e) {
    return take_bool(name, v, &r->stream, e);
}

static int take_stream_options(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (!json_is_object(v)) return wrong_type(e, name, "an object", v);
    const char *key;
    json_t *x;
    json_object_foreach(v, key, x) {
        char param[NAME_MAX_BYTES + 32];
        bool obfuscate = false;
        snprintf(param, sizeof param, "stream_options.%.*s", NAME_MAX_BYTES, key);
        if (strcmp(key, "include_usage") == 0) {
            if (take_bool(param, x, &r->include_usage, e)) return ERR_USAGE;
        } else if (strcmp(key, "include_obfuscation") == 0) {
            if (take_bool(param, x, &obfuscate, e)) return ERR_USAGE;
            if (obfuscate) {
                return errors_set(e, 400, "unsupported_parameter", param,
                                  "'%s' is not supported; leave it out or false", param);
            }
        } else {
            return errors_set(e, 400, "unknown_parameter", param, "Unknown parameter: '%s'", param);
        }
    }
    return ERR_OK;
}

static int take_temperature(struct request *r, const char *name, json_t *v, struct api_error *e) {
    return take_number(name, v, 0, 2, &r->sampling.temperature, e);
}

// 0 means what a number just above it means: the most likely token alone.
static int take_top_p(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (take_number(name, v, 0, 1, &r->sampling.top_p, e)) return ERR_USAGE;
    if (r->sampling.top_p < FLT_MIN) r->sampling.top_p = FLT_MIN;
    return ERR_OK;
}

static int take_min_p(struct request *r, const char *name, json_t *v, struct api_error *e) {
    return take_number(name, v, 0, 1, &r->sampling.min_p, e);
}

static int take_top_k(struct request *r, const char *name, json_t *v, struct api_error *e) {
    int64_t k = 0;
    if (take_integer(name, v, -1, INT32_MAX, &k, e)) return ERR_USAGE;
    r->sampling.top_k = (int32_t)k;
    return ERR_OK;
}

static int take_seed(struct request *r, const char *name, json_t *v, struct api_error *e) {
    int64_t seed = 0;
    if (take_integer(name, v, INT64_MIN, INT64_MAX, &seed, e)) return ERR_USAGE;
    r->sampling.seed = (uint64_t)seed;
    return ERR_OK;
}

static int take_n(struct request *r, const char *name, json_t *v, struct api_error *e) {
    int64_t n = 0;
    if (take_integer(name, v, 1, LIMIT_CHOICES, &n, e)) return ERR_USAGE;
    r->n = (uint32_t)n;
    return ERR_OK;
}

static int take_max_tokens(struct request *r, const char *name, json_t *v, struct api_error *e) {
    int64_t n = 0;
    if (take_integer(name, v, 1, INT32_MAX, &n, e)) return ERR_USAGE;
    if (r->max_tokens && r->max_tokens != (uint32_t)n) {
        return errors_set(e, 400, "invalid_value", name,
                          "'max_tokens' and 'max_completion_tokens' differ: they mean the same, give one");
    }
    r->max_tokens = (uint32_t)n;
    return ERR_OK;
}

static int add_stop(struct request *r, const char *name, const json_t *v, struct api_error *e) {
    if (!json_is_string(v)) return wrong_type(e, name, "a string", v);
    size_t len = json_string_length(v);
    if (len == 0 || len > LIMIT_STOP_BYTES) {
        return errors_set(e, 400, "invalid_value", name, "'%s' has %zu bytes: a stop string has 1 to %d", name, len,
                          LIMIT_STOP_BYTES);
    }
    r->stop[r->n_stop] = json_string_value(v);
    r->stop_len_bytes[r->n_stop++] = len;
    return ERR_OK;
}

static int take_stop(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (json_is_string(v)) return add_stop(r, name, v, e);
    if (!json_is_array(v)) return wrong_type(e, name, "a string or an array of strings", v);
    if (json_array_size(v) > LIMIT_STOP_STRINGS) {
        return errors_set(e, 400, "invalid_value", name, "'%s' has %zu strings: at most %d are allowed", name,
                          json_array_size(v), LIMIT_STOP_STRINGS);
    }
    size_t i;
    json_t *s;
    json_array_foreach(v, i, s) {
        char param[32];
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        if (add_stop(r, param, s, e)) return ERR_USAGE;
    }
    return ERR_OK;
}

static int take_kwargs(struct request *r, const char *name, json_t *v, struct api_error *e) {
    (void)r; // the template reads them out of the body
    return json_is_object(v) ? ERR_OK : wrong_type(e, name, "an object", v);
}

// Says nothing that changes an answer: names, tags and hints for another service.
static int take_string_hint(struct request *r, const char *name, json_t *v, struct api_error *e) {
    (void)r;
    return json_is_string(v) ? ERR_OK : wrong_type(e, name, "a string", v);
}

static int take_object_hint(struct request *r, const char *name, json_t *v, struct api_error *e) {
    (void)r;
    return json_is_object(v) ? ERR_OK : wrong_type(e, name, "an object", v);
}

static int take_bool_hint(struct request *r, const char *name, json_t *v, struct api_error *e) {
    (void)r;
    return json_is_boolean(v) ? ERR_OK : wrong_type(e, name, "a boolean", v);
}

static int take_unsupported(struct request *r, const char *name, json_t *v, struct api_error *e) {
    (void)r, (void)v;
    return errors_set(e, 400, "unsupported_parameter", name, "'%s' is not supported with this value; leave it out",
                      name);
}

static int take_false(struct request *r, const char *name, json_t *v, struct api_error *e) {
    return json_is_false(v) ? ERR_OK : take_unsupported(r, name, v, e);
}

static int take_zero(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (!json_is_number(v)) return wrong_type(e, name, "a number", v);
    return json_number_value(v) == 0 ? ERR_OK : take_unsupported(r, name, v, e);
}

static int take_one(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (!json_is_number(v)) return wrong_type(e, name, "a number", v);
    return json_number_value(v) == 1 ? ERR_OK : take_unsupported(r, name, v, e);
}

// An empty array, object or string.
static int take_empty(struct request *r, const char *name, json_t *v, struct api_error *e) {
    bool empty = (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0) ||
                 (json_is_string(v) && json_string_length(v) == 0);
    return empty ? ERR_OK : take_unsupported(r, name, v, e);
}

static int take_choice_of_none(struct request *r, const char *name, json_t *v, struct api_error *e) {
    const char *s = json_string_value(v);
    return s && (strcmp(s, "none") == 0 || strcmp(s, "auto") == 0) ? ERR_OK : take_unsupported(r, name, v, e);
}

static int take_tier(struct request *r, const char *name, json_t *v, struct api_error *e) {
    const char *s = json_string_value(v);
    return s && (strcmp(s, "auto") == 0 || strcmp(s, "default") == 0) ? ERR_OK : take_unsupported(r, name, v, e);
}

static int take_format(struct request *r, const char *name, json_t *v, struct api_error *e) {
    if (!json_is_object(v)) return wrong_type(e, name, "an object", v);
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && strcmp(type, "text") == 0 && json_object_size(v) == 1 ? ERR_OK : take_unsupported(r, name, v, e);
}

static int take_modalities(struct request *r, const char *name, json_t *v, struct api_error *e) {
    const char *s = json_string_value(json_array_get(v, 0));
    return s && json_array_size(v) == 1 && strcmp(s, "text") == 0 ? ERR_OK : take_unsupported(r, name, v, e);
}

// Every parameter that is known, those included of which only the value that changes nothing is supported. null means
// the same as leaving it out.
static const struct param {
    const char *name;
    unsigned endpoints;
    int (*take)(struct request *r, const char *name, json_t *v, struct api_error *e);
} params[] = {
    {"model", BOTH, take_model},
    {"messages", CHAT, take_messages},
    {"prompt", COMPLETION, take_prompt},
    {"stream", BOTH, take_stream},
    {"stream_options", BOTH, take_stream_options},
    {"temperature", BOTH, take_temperature},
    {"top_p", BOTH, take_top_p},
    {"top_k", BOTH, take_top_k},
    {"min_p", BOTH, take_min_p},
    {"seed", BOTH, take_seed},
    {"stop", BOTH, take_stop},
    {"max_tokens", BOTH, take_max_tokens},
    {"max_completion_tokens", BOTH, take_max_tokens},
    {"n", BOTH, take_n},
    {"chat_template_kwargs", CHAT, take_kwargs},
    {"user", BOTH, take_string_hint},
    {"safety_identifier", CHAT, take_string_hint},
    {"prompt_cache_key", CHAT, take_string_hint},
    {"metadata", CHAT, take_object_hint},
    {"parallel_tool_calls", CHAT, take_bool_hint},
    {"service_tier", CHAT, take_tier},
    {"store", CHAT, take_false},
    {"logprobs", CHAT, take_false},
    {"logprobs", COMPLETION, take_unsupported},
    {"top_logprobs", CHAT, take_zero},
    {"presence_penalty", BOTH, take_zero},
    {"frequency_penalty", BOTH, take_zero},
    {"logit_bias", BOTH, take_empty},
    {"response_format", CHAT, take_format},
    {"modalities", CHAT, take_modalities},
    {"tools", CHAT, take_empty},
    {"tool_choice", CHAT, take_choice_of_none},
    {"functions", CHAT, take_empty},
    {"function_call", CHAT, take_choice_of_none},
    {"audio", CHAT, take_unsupported},
    {"prediction", CHAT, take_unsupported},
    {"reasoning_effort", CHAT, take_unsupported},
    {"verbosity", CHAT, take_unsupported},
    {"web_search_options", CHAT, take_unsupported},
    {"prompt_cache_retention", CHAT, take_unsupported},
    {"echo", COMPLETION, take_false},
    {"suffix", COMPLETION, take_empty},
    {"best_of", COMPLETION, take_one},
};

static int take_param(struct request *r, const char *key, json_t *v, struct api_error *e) {
    unsigned endpoint = r->chat ? CHAT : COMPLETION;
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        if (!(params[i].endpoints & endpoint) || strcmp(params[i].name, key) != 0) continue;
        return json_is_null(v) ? ERR_OK : params[i].take(r, key, v, e);
    }
    return errors_set(e, 400, "unknown_parameter", key, "Unknown parameter: '%.*s'", NAME_MAX_BYTES, key);
}

static int missing(struct api_error *e, const char *name) {
    return errors_set(e, 400, "missing_required_parameter", name, "'%s' is missing", name);
}

static int take_all(struct request *r, struct api_error *e) {
    if (!json_is_object(r->root)) {
        return errors_set(e, 400, "invalid_type", NULL, "The body must be a JSON object, not %s",
                          request_type_name(r->root));
    }
    const char *key;
    json_t *v;
    json_object_foreach(r->root, key, v) {
        if (take_param(r, key, v, e)) return ERR_USAGE;
    }
    if (!r->model) return missing(e, "model");
    if (r->chat && !json_is_array(json_object_get(r->root, "messages"))) return missing(e, "messages");
    if (!r->chat && !r->prompt) return missing(e, "prompt");
    const json_t *options = json_object_get(r->root, "stream_options");
    if (options && !json_is_null(options) && !r->stream) {
        return errors_set(e, 400, "invalid_value", "stream_options",
                          "'stream_options' is only allowed with 'stream': true");
    }
    return ERR_OK;
}

// A value costs the parser up to a hundred bytes of memory however short it is, so that their number is bounded as
// well as the size of the body. What stands inside strings is told apart only where it matters.
static bool has_too_many_values(const char *body, size_t len_bytes) {
    size_t commas = 0, opened = 0;
    for (size_t i = 0; i < len_bytes; i++) {
        commas += body[i] == ',';
        opened += body[i] == '[' || body[i] == '{';
    }
    if (commas <= LIMIT_JSON_VALUES && opened <= LIMIT_JSON_CONTAINERS) return false;
    commas = opened = 0;
    bool inside = false;
    for (size_t i = 0; i < len_bytes; i++) {
        if (inside && body[i] == '\\') {
            i++;
        } else if (body[i] == '"') {
            inside = !inside;
        } else if (!inside) {
            commas += body[i] == ',';
            opened += body[i] == '[' || body[i] == '{';
        }
    }
    return commas > LIMIT_JSON_VALUES || opened > LIMIT_JSON_CONTAINERS;
}

// The key whose value ends at `end`, as the parser's position says; "" where it cannot be told.
static void key_before(const char *body, size_t end, char name[NAME_MAX_BYTES]) {
    size_t at = end, stop, n;
    name[0] = 0;
    while (at > 0 && memchr("+-0123456789", body[at - 1], 12)) at--;
    while (at > 0 && memchr(" \t\r\n", body[at - 1], 4)) at--;
    if (at == 0 || body[--at] != ':') return;
    while (at > 0 && memchr(" \t\r\n", body[at - 1], 4)) at--;
    if (at == 0 || body[--at] != '"') return;
    for (stop = at; at > 0 && body[at - 1] != '"'; at--) {
    }
    n = stop - at;
    if (at == 0 || n >= NAME_MAX_BYTES || memchr(body + at, '\\', n)) return;
    memcpy(name, body + at, n);
    name[n] = 0;
}

static int not_json(const char *body, size_t len_bytes, const json_error_t *je, struct api_error *e) {
    char name[NAME_MAX_BYTES];
    bool large = json_error_code(je) == json_error_numeric_overflow && strncmp(je->text, "too big", 7) == 0;
    if (!large || je->position < 0 || (size_t)je->position > len_bytes) {
        return errors_set(e, 400, "invalid_json", NULL, "The body is not valid JSON, line %d column %d: %s", je->line,
                          je->column, je->text);
    }
    key_before(body, (size_t)je->position, name);
    if (!name[0]) {
        return errors_set(e, 400, "invalid_json", NULL, "Integers must fit in 64 bits (signed), line %d column %d",
                          je->line, je->column);
    }
    return errors_set(e, 400, "invalid_json", name, "'%s': integers must fit in 64 bits (signed)", name);
}

int request_parse(struct request *r, bool chat, const char *body, size_t len_bytes, const struct sampling *defaults,
                  struct api_error *e) {
    *r = (struct request){.chat = chat, .n = 1, .sampling = *defaults};
    // 53 bits, so that a client whose numbers are doubles can send the seed again.
    r->sampling.seed = random_u64() >> 11;
    if (len_bytes == 0) return errors_set(e, 400, "invalid_json", NULL, "The body is empty: it must be a JSON object");
    if (has_too_many_values(body, len_bytes)) {
        return errors_set(e, 413, "request_too_large", NULL,
                          "The body has more than %d values or %d arrays and objects", LIMIT_JSON_VALUES,
                          LIMIT_JSON_CONTAINERS);
    }
    json_error_t je;
    r->root = json_loadb(body, len_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!r->root) return not_json(body, len_bytes, &je, e);
    int rc = take_all(r, e);
    if (rc) request_fini(r);
    return rc;
}

void request_fini(struct request *r) {
    json_decref(r->root);
    *r = (struct request){0};
}
