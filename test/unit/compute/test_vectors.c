// compute/ref against the files of test vectors: inputs and expected bytes made apart from this code.
#include "fixture.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#define VECTORS LOOM_SOURCE_DIR "/../shared/fixtures/numerics/vectors"

struct file {
    uint8_t *bytes;
    uint64_t header;
    json_t *json;
};

static struct file open_file(const char *name) {
    struct file f = {0};
    char path[512];
    snprintf(path, sizeof path, VECTORS "/%s.safetensors", name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    long size = ftell(in);
    rewind(in);
    f.bytes = malloc((size_t)size);
    assert_int_equal(fread(f.bytes, 1, (size_t)size, in), size);
    fclose(in);
    memcpy(&f.header, f.bytes, 8);
    f.json = json_loadb((const char *)f.bytes + 8, f.header, 0, NULL);
    assert_non_null(f.json);
    return f;
}

static void close_file(struct file *f) {
    json_decref(f->json);
    free(f->bytes);
}

// Data of a tensor, copied to aligned memory; *bytes may be NULL.
static void *tensor(const struct file *f, const char *name, size_t *bytes) {
    json_t *at = json_object_get(json_object_get(f->json, name), "data_offsets");
    assert_non_null(at);
    size_t begin = (size_t)json_integer_value(json_array_get(at, 0)),
           end = (size_t)json_integer_value(json_array_get(at, 1));
    void *p = malloc(end - begin);
    memcpy(p, f->bytes + 8 + f->header + begin, end - begin);
    if (bytes) *bytes = end - begin;
    return p;
}

static void check_tensor(const struct file *f, const char *name, const void *got) {
    size_t bytes;
    void *want = tensor(f, name, &bytes);
    assert_memory_equal(got, want, bytes);
    free(want);
}

static void scalar_rules(void **state) {
    (void)state;
    struct file f = open_file("exp2_silu");
    size_t bytes;
    bool fault = false;
    float *x = tensor(&f, "x", &bytes), *y = malloc(bytes);
    for (size_t i = 0; i < bytes / 4; i++) y[i] = ref_exp2(x[i], &fault);
    check_tensor(&f, "exp2", y);
    for (size_t i = 0; i < bytes / 4; i++) y[i] = ref_silu(x[i], &fault);
    check_tensor(&f, "silu", y);
    free(x);
    free(y);
    close_file(&f);
    f = open_file("quant");
    x = tensor(&f, "x", &bytes);
    size_t n = bytes / 4;
    uint16_t *h = malloc(2 * n);
    int8_t *q = malloc(n);
    float *d = malloc(n / 32);
    for (size_t i = 0; i < n; i++) h[i] = ref_bf16_from_f32(x[i], &fault);
    for (size_t i = 0; i < n; i += 128) d[i / 128] = ref_quant(x + i, 128, q + i, &fault);
    check_tensor(&f, "bf16_bits", h);
    check_tensor(&f, "q", q);
    check_tensor(&f, "d", d);
    assert_false(fault);
    free(x);
    free(h);
    free(q);
    free(d);
    close_file(&f);
}

static void norm(void **state) {
    (void)state;
    struct file f = open_file("rmsnorm");
    size_t bytes;
    float *x = tensor(&f, "x", &bytes), *w = tensor(&f, "w", NULL), *y = malloc(bytes);
    uint32_t *lengths = tensor(&f, "lengths", NULL), at = 0;
    for (int i = 0; i < 7; at += lengths[i++]) ref_rmsnorm(x + at, w + at, lengths[i], 1e-6f, y + at);
    check_tensor(&f, "y", y);
    free(x);
    free(w);
    free(y);
    free(lengths);
    close_file(&f);
    f = open_file("subnormal");
    x = tensor(&f, "x", &bytes);
    w = tensor(&f, "w", NULL);
    y = malloc(bytes);
    ref_rmsnorm(x, w, 256, 1e-6f, y);
    check_tensor(&f, "y", y);
    free(x);
    free(w);
    free(y);
    close_file(&f);
}

static void rope(void **state) {
    (void)state;
    struct file f = open_file("rope");
    double *fq = tensor(&f, "fq", NULL);
    uint32_t *pos = tensor(&f, "pos", NULL);
    float *x = tensor(&f, "x", NULL), c[8 * 64], s[8 * 64];
    for (int i = 0; i < 8; i++) {
        ref_rope_row(pos[i], fq, 64, c + i * 64, s + i * 64);
        ref_rope(x + i * 128, 64, c + i * 64, s + i * 64);
    }
    check_tensor(&f, "cos", c);
    check_tensor(&f, "sin", s);
    check_tensor(&f, "y", x);
    for (int i = 0; i < 8; i++) ref_hadamard(x + i * 128, 128);
    check_tensor(&f, "hadamard", x);
    free(fq);
    free(pos);
    free(x);
    close_file(&f);
}

static void dots(void **state) {
    (void)state;
    enum { K = 2304, ROWS = 12, TOKENS = 3 };
    struct file f = open_file("dot");
    float *x = tensor(&f, "x", NULL), y[TOKENS * ROWS];
    _Alignas(64) static struct act_block a[TOKENS][K / 128];
    bool fault = false;
    for (int t = 0; t < TOKENS; t++) ref_quant_row(x + t * K, K, a[t], &fault);
    for (enum dtype type = DT_L8; type <= DT_Q6_K; type++) {
        char name[32];
        uint64_t row = dtype_row_bytes(type, K);
        snprintf(name, sizeof name, "w.%s", dtype_info(type)->name);
        uint8_t *w = tensor(&f, name, NULL);
        for (int t = 0; t < TOKENS; t++)
            for (uint32_t r = 0; r < ROWS; r++) y[t * ROWS + r] = ref_dot(type, w + r * row, a[t], K);
        name[0] = 'y';
        check_tensor(&f, name, y);
        free(w);
    }
    uint8_t *w = tensor(&f, "w.F32", NULL);
    for (int t = 0; t < TOKENS; t++)
        for (uint32_t r = 0; r < ROWS; r++) y[t * ROWS + r] = ref_dot_float(DT_F32, w + r * K * 4ull, x + t * K, K);
    check_tensor(&f, "y.F32", y);
    free(w);
    free(x);
    close_file(&f);
}

static void attend(const struct file *f, uint32_t hd, uint32_t window, const char *name) {
    enum { QUERIES = 11 };
    static struct ref_attention a;
    uint32_t *pos = tensor(f, "pos", NULL);
    int8_t *q = tensor(f, "q", NULL), *k = tensor(f, "k", NULL), *v = tensor(f, "v", NULL);
    float *dq = tensor(f, "dq", NULL), *dk = tensor(f, "dk", NULL), *dv = tensor(f, "dv", NULL), out[QUERIES * 128];
    bool fault = false;
    for (uint32_t i = 0; i < QUERIES; i++) {
        uint32_t lo = ref_first_key(pos[i], window);
        float qs = dq[i] * (REF_LOG2E / sqrtf((float)hd));
        ref_attention_begin(&a);
        for (uint32_t j0 = lo / 64 * 64; j0 <= pos[i]; j0 += 64)
            ref_attention_block_i8(&a, q + i * hd, qs,
                                   &(struct ref_keys_i8){k + j0 * hd, v + j0 * hd, dk + j0, dv + j0}, hd, 0.0f, j0, lo,
                                   pos[i], &fault);
        ref_attention_end(&a, hd, out + i * hd);
    }
    check_tensor(f, name, out);
    assert_false(fault);
    free(pos);
    free(q);
    free(k);
    free(v);
    free(dq);
    free(dk);
    free(dv);
}

static void attention(void **state) {
    (void)state;
    for (uint32_t hd = 64; hd <= 128; hd *= 2) {
        struct file f = open_file(hd == 64 ? "attention_64" : "attention_128");
        attend(&f, hd, 0, "out");
        attend(&f, hd, 100, "out_win100");
        close_file(&f);
    }
}

static void sampler(void **state) {
    (void)state;
    static struct ref_ranked ranked[4096];
    struct file f = open_file("sampler");
    float *l = tensor(&f, "logits", NULL);
    int32_t token[64];
    bool fault = false;
    for (uint32_t p = 0; p < 64; p++) {
        struct sampling s = {.temperature = p < 4 ? 0.0f : 0.5f + 0.02f * (float)p,
                             .top_k = p % 3 ? (int32_t)(20 + p) : 0,
                             .top_p = p % 5 ? 0.95f : 1.0f,
                             .min_p = p % 7 ? 0.0f : 0.02f,
                             .seed = 1234567890123456789ull,
                             .choice = p / 32};
        token[p] = ref_sample(l, 4096, &s, p, NULL, ranked, &fault);
    }
    check_tensor(&f, "tokens", token);
    free(l);
    close_file(&f);
}

// f16: every value there and back, ties to even, and what does not fit.
static void half_floats(void **state) {
    (void)state;
    bool fault = false;
    for (uint32_t h = 0; h < 0x10000; h++) {
        if ((h & 0x7c00) == 0x7c00) continue;
        float f = ref_f32_from_f16((uint16_t)h);
        assert_int_equal(ref_f16_from_f32(f, &fault), h);
        if ((h & 0x7fff) >= 0x7bff) continue;
        float mid = (f + ref_f32_from_f16((uint16_t)(h + 1))) * 0.5f; // exact
        assert_int_equal(ref_f16_from_f32(mid, &fault), h & 1 ? h + 1 : h);
        assert_int_equal(ref_f16_from_f32(nextafterf(mid, 0.0f), &fault), h);
    }
    assert_int_equal(ref_f16_from_f32(65519.996f, &fault), 0x7bff);
    assert_false(fault);
    assert_int_equal(ref_f16_from_f32(65520.0f, &fault), 0);
    assert_true(fault);
}

int main(void) {
    if (access(VECTORS "/dot.safetensors", R_OK) != 0) {
        printf("skipped: needs ../shared/fixtures/numerics/vectors\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_rules), cmocka_unit_test(norm),    cmocka_unit_test(rope),       cmocka_unit_test(dots),
        cmocka_unit_test(attention),    cmocka_unit_test(sampler), cmocka_unit_test(half_floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
