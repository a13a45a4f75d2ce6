// What a model is: hyper-parameters, which tensors a layer needs, and the layer as a sequence of backend operations.
// There is one layer (layer.c), which the hyper-parameters switch; a family (family_*.c) reads a config.json into them.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "compute/backend.h"
#include "weights/tensors.h"
#include <stdbool.h>
#include <stdint.h>

struct family;

enum weight_mode {  // --weights
    WEIGHTS_NATIVE, // block types as the file has them, floats to L8 (the default)
    WEIGHTS_AS_IS,  // float tensors stay float: NUMERICS 3.3
    WEIGHTS_L8,
    WEIGHTS_Q8_0,
    WEIGHTS_Q4_0
};

enum { ROPE_SETS = 2, ROPE_NONE = 255 };

// RoPE, ready for NUMERICS 5: quarter-turn frequencies, made once at the head; their bits travel in the plan.
struct rope_set {
    uint32_t n_freq; // rotated pairs of a head; 0: this set is not used
    double fq[LIMIT_HEAD_DIM / 2];
    float factor; // attention factor (YaRN, longrope); 1: none
};

enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WIDE }; // of each head alone; of the whole projection
enum norm_layout {
    NORM_PRE,      // x + f(norm(x)), twice
    NORM_PRE_POST, // x + norm(f(norm(x))): Gemma
    NORM_POST      // x + norm(f(x)): OLMo 3
};

// Hyper-parameters, read from config.json. Plain data; every number was checked against limits.h.
struct hparams {
    const struct family *family;
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, n_vocab;
    uint32_t max_context;            // max_position_embeddings
    uint32_t window;                 // sliding window; 0: none
    bool window_layer[LIMIT_LAYERS]; // layer i looks only that far back
    // What the matrices of the files are, for accounting only: as config.json says of all of them, or of each layer,
    // the embedding and the output head where a GGUF file has a mix.
    enum dtype layer_type[LIMIT_LAYERS], embed_type, head_type;
    float rms_eps;
    bool tied_embedding;
    // MoE; n_experts = 0: dense. dense_layer[i]: layer i has a dense MLP all the same.
    uint32_t n_experts, top_k, expert_ffn;
    bool norm_topk;
    bool dense_layer[LIMIT_LAYERS];
    enum router_kind router;
    uint32_t n_groups, top_groups; // of experts; 1, 1: none
    float routed_scale;            // 1: none
    bool router_bias;              // there is a correction bias, added for the choice only
    uint32_t shared_ffn;           // width of the shared expert's MLP; 0: there is none
    struct rope_set rope[ROPE_SETS];
    uint8_t rope_of[LIMIT_LAYERS]; // which set a layer uses; ROPE_NONE: it has no RoPE
    // longrope: what rope[0] is for contexts of up to rope_short_context tokens, and for longer ones. 0: it is no
    // choice.
    struct rope_set rope_short, rope_long;
    uint32_t rope_short_context;
    float q_beta; // queries at position p grow: 1 + q_beta * ln(1 + floor(p / q_original)); 0: not
    uint32_t q_original;
    enum activation act;
    enum qk_norm qk_norm;
    enum norm_layout norms;
    bool norm_plus_one; // files have w - 1 of the norms (Gemma's folders; GGUF files have w)
    bool bias_q, bias_k, bias_v, bias_o, bias_mlp;
    float head_scale;                  // in place of 1/sqrt(head_dim); 0: that
    float attn_softcap, final_softcap; // 0: none
    float embed_scale;                 // 1: none
    // How the files have it, which changes no result once it is loaded.
    bool qk_interleaved;            // rows of q and k go by RoPE pairs (0, n/2, 1, n/2 + 1, ...): llama-like GGUF files
    bool fp8_blocks;                // E4M3 matrices with a scale for each 128 x 128 values in "<name>_scale_inv"
    uint16_t fp8_not[LIMIT_LAYERS]; // of the layer's matrices those that are not E4M3 all the same: bits (fp8_bit)
    uint32_t n_ignored_layers;      // layers that the files may have beyond n_layers (they draft tokens)
    int32_t eos_ids[LIMIT_STOP_IDS];
    uint32_t n_eos;
    int32_t bos_id; // -1: none
};

// Sampling defaults of generation_config.json. What it does not name is off: temperature 1, top_p 1, min_p 0, top_k 0.
struct gen_defaults {
    float temperature, top_p, min_p;
    int32_t top_k;
};

// config.json (NUL-terminated or not; len bytes) -> hparams. An unknown architecture or a setting that this build
// cannot honour is ERR_UNSUPPORTED with its name.
int model_parse_config(const char *json, uint64_t len, struct hparams *h, struct err *e) MUST_CHECK;
// generation_config.json: adds end tokens to h and reads the defaults (an explicit do_sample false: temperature 0).
// json may be NULL.
int model_parse_generation(const char *json, uint64_t len, struct hparams *h, struct gen_defaults *g,
                           struct err *e) MUST_CHECK;

// Chooses what depends on the length of the texts once and for all of them: KV must be a function of the prefix
// (NUMERICS 7.6). context: tokens of the longest sequence of the plan. model_parse_config takes the model's own window.
// The head calls it before anything else sees h; its choice travels with the RoPE values.
void model_set_context(struct hparams *h, uint32_t context);
// The RoPE values of the plan, which are the head's on all machines, as libms round differently: for each set that is
// used its frequencies and its factor. get returns how many there are; put is ERR_FORMAT unless n is that number and
// all are finite.
uint32_t model_rope_get(const struct hparams *h, double values[LIMIT_ROPE_VALUES]);
int model_rope_put(struct hparams *h, const double *values, uint32_t n, struct err *e) MUST_CHECK;

// How a model is computed; equal on all nodes of a route (part of the plan, hashed with ln=1 and the RoPE bits).
struct run_mode {
    enum weight_mode weights;
    enum kv_type kv;
    bool verify; // the plain mathematics: float weights, KV_F32, residual not rounded; reference kernels only
};
// Hash of everything on which the bytes depend: ln version, mode, had, hyper-parameters, RoPE bits.
uint64_t model_plan_hash(const struct hparams *h, const struct run_mode *m);

// One tensor that a range of layers needs. want: shape outermost first, 0 where a dimension does not exist.
struct tensor_need {
    char name[256];
    uint64_t dim[2];
    bool is_matrix; // may be quantised; else kept as f32 (norms, biases, router, scales of FP8)
};
// Lists what the layers [a, b) need, with the embedding if a == 0 and the final norm and output head if b == n_layers
// (a tied output head needs the embedding). Calls fn for each; stops and returns what fn returns if not 0.
int model_needs(const struct hparams *h, uint32_t a, uint32_t b, int (*fn)(void *arg, const struct tensor_need *n),
                void *arg) MUST_CHECK;
// Gives tensors that the files have in another form the names that model_needs says: fused and stacked matrices are cut
// into their rows, the prefix of a model inside a larger one goes. What is not there is left to the loader to say, but
// for GGUF files, which are whole: ERR_NOT_FOUND. A tensor of a layer, and any of a GGUF file, that is no need and not
// known to be without effect is ERR_UNSUPPORTED.
int model_fit_tensors(const struct hparams *h, struct tensors *t, struct err *e) MUST_CHECK;
// Whether all that the model needs is there, of a shape and a type that can be loaded. Looks at no values.
int model_check_tensors(const struct hparams *h, const struct tensors *t, struct err *e) MUST_CHECK;
// Bytes that these layers take in the backend's memory.
uint64_t model_layer_bytes(const struct hparams *h, const struct run_mode *m, const struct backend_ops *ops, uint32_t a,
                           uint32_t b);
// The same for the tensors of a file, each by its own type, where model_layer_bytes goes by hparams.layer_type.
uint64_t model_file_layer_bytes(const struct hparams *h, const struct run_mode *m, const struct backend_ops *ops,
                                const struct tensors *t, uint32_t a, uint32_t b);
// Which types of matrices of these layers a load turns into which others, for people: "Q2_K to L8 (34 matrices), ...";
// "": none.
void model_conversions(const struct hparams *h, const struct run_mode *m, const struct tensors *t, uint32_t a,
                       uint32_t b, char *text, size_t size);
uint64_t model_kv_bytes_per_token(const struct hparams *h, enum kv_type kv, uint32_t n_layers);

// The loaded layers [a, b) on one backend.
struct model_part;
struct model_progress {
    void (*fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes); // may be NULL
    void *arg;
    // Called before the bytes of a tensor are looked at: returns when they are there, or why they do not come. NULL:
    // all are there.
    int (*await)(void *arg, const char *name, struct err *e);
};
int model_part_load(const struct hparams *h, const struct run_mode *m, const struct tensors *t, struct backend *be,
                    uint32_t a, uint32_t b, const struct model_progress *p, struct model_part **part,
                    struct err *e) MUST_CHECK;
void model_part_free(struct model_part *part);

// Scratch for max_rows rows, shared by all layers of a stage. Owned by the engine's stage.
struct scratch;
struct scratch *scratch_new(const struct hparams *h, const struct run_mode *m, struct backend *be, uint32_t max_rows);
void scratch_free(struct scratch *s);
// From here on another backend of the same kind computes with both; their memory stays that of the first.
void model_move(struct model_part *p, struct scratch *s, struct backend *be);
uint64_t scratch_bytes(const struct hparams *h, uint32_t max_rows);

// Where the time of a pass goes.
enum model_op {
    OP_QKV, // matrices; those of a shared expert are in OP_FFN
    OP_O,
    OP_FFN,
    OP_HEAD,
    OP_QUANT, // of the rows that go into matrices; what the experts make is quantised in OP_EXPERTS
    OP_NORM,
    OP_ROPE,
    OP_KV_WRITE,
    OP_ATTENTION,
    OP_ACT,    // what is between the matrices of an MLP; the experts' is in OP_EXPERTS
    OP_ROUTER, // its matrix and the choice
    OP_EXPERTS,
    OP_SAMPLE,
    OP_REST,
    OP_N
};
const char *model_op_name(enum model_op op); // "qkv"
// The clock is off at first, and costs nothing then; switching it on starts from 0.
void scratch_clock(struct scratch *s, bool on);
const uint64_t *scratch_op_ns(const struct scratch *s); // [OP_N]; OP_SAMPLE is 0: the engine's

// The matrices of a whole model, by the operation that reads them: bytes in the backend's memory, and multiply-adds of
// a row of integers that goes through all of them, the experts included.
struct model_matrices {
    double bytes[OP_N], macs[OP_N];
    enum dtype most; // the type that most of the bytes have
};
void model_matrices(const struct hparams *h, const struct run_mode *mode, const struct backend_ops *ops,
                    const struct tensors *t, struct model_matrices *m);
// What steps must read at least, and their multiply-adds of integers. Experts are reckoned as if each row chose any of
// them with the same probability.
struct model_work {
    double bytes[OP_N], macs[OP_N];
};
struct model_step {
    uint32_t n_seqs;
    uint32_t n_rows, pos; // of each: its rows, and the position of the first
    bool draws;           // the last row of each goes through the output head
};
// Adds one step.
void model_add_step(const struct hparams *h, enum kv_type kv, const struct model_matrices *m,
                    const struct model_step *s, struct model_work *w);

// The three pieces of a pass. x [n_rows][hidden] f32 in the backend's memory. rope tables are made once per batch.
void model_embed(const struct model_part *p, struct scratch *s, const int32_t *tokens, const struct batch *b, float *x);
void model_begin(const struct model_part *p, struct scratch *s, const struct batch *b); // RoPE tables of this batch
void model_layer(const struct model_part *p, struct scratch *s, uint32_t layer, struct kv_cache *kv,
                 const struct batch *b, float *x); // layer counts from 0 in the whole model; kv layer is layer - a
// logits [n_out][n_vocab] of the rows index[0..n_out) of x. With normed not NULL the rows after the final norm too.
void model_head(const struct model_part *p, struct scratch *s, const uint32_t *index, uint32_t n_out,
                const struct batch *b, const float *x, float *logits, float *normed);
